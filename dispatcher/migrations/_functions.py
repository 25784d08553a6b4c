"""Operations of migrations that install the functions of a release, and drop those of an earlier one.

The text is the frozen copy `functions_<version>.sql` beside this file, which `make functions` writes: a migration must
not read the files of dispatcher/sql/functions/, which later releases change. A function is never replaced under its
name, since processes of that version may be calling it. A release installs its functions in a migration of its own; those
of a release are dropped two releases later, when no process has its code.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from django.db import router, transaction
from django.db.migrations.operations.base import Operation, OperationCategory

from dispatcher.sql.functions import Definition, definitions

FOLDER: Final = Path(__file__).parent

# A function keeps the search path under which it is made. "$user" in it becomes the role that migrates, which has the
# tables: another role that calls the function would look for them in a schema of its own.
FIX_PATH = """
SELECT set_config('dispatcher.search_path', current_setting('search_path'), true),
       set_config('search_path', replace(current_setting('search_path'), '"$user"', quote_ident(current_user)), true)
"""
RESET_PATH = "SELECT set_config('search_path', current_setting('dispatcher.search_path'), true)"
# CREATE TYPE has no IF NOT EXISTS.
CREATE = """
DO $install$ BEGIN
{text}
EXCEPTION WHEN duplicate_function OR duplicate_object THEN NULL;
END $install$
"""
# For programs that know only SQL, such as autoscalers: its name stays, and it calls the newest function that stays.
# It counts with the defaults of the settings, which the database does not know. See docs/how-to/autoscaling.md.
VIEW = """
DO $view$
DECLARE
  v_version text := (SELECT right(made.proname, 8) FROM pg_proc AS made
                      WHERE made.proname ~ '^dispatcher_runnable_[0-9a-f]{{8}}$'
                        AND made.proname <> 'dispatcher_runnable_{gone}'
                      ORDER BY made.oid DESC LIMIT 1);
BEGIN
  IF v_version IS NULL THEN
    DROP VIEW IF EXISTS dispatcher_runnable;
    RETURN;
  END IF;
  EXECUTE replace($text$
    CREATE OR REPLACE VIEW dispatcher_runnable AS
    SELECT queue.name AS queue, now.calls AS runnable, now.active,
           COALESCE(extract(epoch FROM clock_timestamp() - now.since), 0)::float8 AS oldest_seconds
      FROM dispatcher_queues_VERSION() AS queue
     CROSS JOIN LATERAL dispatcher_runnable_VERSION(queue.name, 1000, interval '200 milliseconds',
                                                    interval '50 milliseconds', interval '10 seconds',
                                                    clock_timestamp()) AS now
    $text$, 'VERSION', v_version);
END $view$
"""


class _Functions(Operation):
    """Has the functions of one version."""

    reversible = True
    reduces_to_sql = True

    def __init__(self, version: str) -> None:
        self.version = version

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Change nothing: models know nothing of functions."""

    def _install(self, app_label: str, editor: Any) -> None:
        if router.allow_migrate(editor.connection.alias, app_label):
            install(editor, frozen(self.version))

    def _drop(self, app_label: str, editor: Any) -> None:
        if router.allow_migrate(editor.connection.alias, app_label):
            show(editor, gone=self.version)
            for each in reversed(frozen(self.version)):
                editor.execute(f"DROP {each.kind} IF EXISTS {each.name}", params=None)


class InstallFunctions(_Functions):
    """Create the functions of a version, and the view on them; those that exist are kept."""

    category = OperationCategory.ADDITION

    def database_forwards(self, app_label: str, editor: Any, *_: Any) -> None:
        self._install(app_label, editor)

    def database_backwards(self, app_label: str, editor: Any, *_: Any) -> None:
        self._drop(app_label, editor)

    def describe(self) -> str:
        return f"Install the functions of version {self.version}"


class DropFunctions(_Functions):
    """Drop the functions of a version, two releases after the last code that calls them."""

    category = OperationCategory.REMOVAL

    def database_forwards(self, app_label: str, editor: Any, *_: Any) -> None:
        self._drop(app_label, editor)

    def database_backwards(self, app_label: str, editor: Any, *_: Any) -> None:
        self._install(app_label, editor)

    def describe(self) -> str:
        return f"Drop the functions of version {self.version}"


def install(editor: Any, made: Sequence[Definition]) -> None:
    """Create these functions and types, and the view on them; those that exist are kept."""
    with transaction.atomic(using=editor.connection.alias):
        editor.execute(FIX_PATH, params=None)
        for each in made:
            editor.execute(CREATE.format(text=each.text), params=None)
        show(editor)
        editor.execute(RESET_PATH, params=None)


def show(editor: Any, *, gone: str = "") -> None:
    """Let the view call the newest functions, apart from a version that is going to be dropped."""
    editor.execute(VIEW.format(gone=gone), params=None)


def copy_of(version: str) -> Path:
    """Return the file of a frozen copy."""
    return FOLDER / f"functions_{version}.sql"


def frozen(version: str) -> list[Definition]:
    """Return the definitions of a frozen copy, in the order in which they are created."""
    return [*definitions(copy_of(version).read_text("utf-8"))]
