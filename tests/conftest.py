"""The servers of a test run: embedded ones, unless DATABASE_URL and CELERY_BROKER_URL name others.

With --pooler a PgBouncer of its own, in transaction mode, is between the tests and the database. With `-n 2`
(pytest-xdist) each process has servers and a database of its own.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import django
import psycopg
import pytest
from django.apps import apps
from django.conf import settings

from dispatcher import conf
from dispatcher.conf import Conf
from project.pooler import Pooler, PoolerMissing, pgbouncer
from project.services import Services, embedded
from tests.apps import APPS

SERVICES = pytest.StashKey[Services]()
POOLER = pytest.StashKey[Pooler]()
SHARED = 6
"""How many connections the pooler has to the database: fewer than most tests have clients."""
MODEL_SEED = "MODEL_SEED"
"""The variable with the seed of the model's sequences: that of the day, if it is not set."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --pooler and --without-ojs."""
    parser.addoption("--pooler", action="store_true", help="run behind a PgBouncer in transaction mode")
    parser.addoption("--without-ojs", action="store_true", help="run what is not of dispatcher.ojs, and without it")


def pytest_configure(config: pytest.Config) -> None:
    """Start the servers, and only then set up Django, whose settings read where the servers are."""
    if settings.configured:
        message = "Unset DJANGO_SETTINGS_MODULE: the settings must not be loaded before the servers are up."
        raise pytest.UsageError(message)
    # One day for all processes.
    os.environ.setdefault(MODEL_SEED, f"{datetime.now(UTC):%Y%m%d}")
    if _only_distributes(config):
        # Set when the project was imported; in the processes it would load the settings before their servers are up.
        os.environ.pop("DJANGO_SETTINGS_MODULE", None)
        return
    running = ExitStack()
    config.add_cleanup(running.close)
    services = running.enter_context(embedded(name="tests"))
    config.stash[SERVICES] = services
    if services.owns_database:
        _stop_waiting_for_the_disk(services.database_url)
    if config.getoption("pooler"):
        _go_behind_a_pooler(config, running)
    os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
    if config.getoption("without_ojs"):
        os.environ["WITHOUT_OJS"] = "1"
        APPS.remove("dispatcher.ojs")
    django.setup()
    # The tests choose the delivery (see _settings_of_tests).
    del settings.DISPATCHER["delivery"]


def pytest_report_header(config: pytest.Config) -> str:
    """Report which servers are used, and the seed of the model's sequences."""
    seed = f"{MODEL_SEED}={os.environ[MODEL_SEED]}"
    if _only_distributes(config):
        return f"database and broker: of each process; {config.getoption('numprocesses')} processes; {seed}"
    services = config.stash[SERVICES]
    left_out = ", without dispatcher.ojs and its tests" if config.getoption("without_ojs") else ""
    return f"database: {services.database_url}, broker: {services.broker_url}; {seed}{left_out}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out tests/ojs where the app is."""
    return True if config.getoption("without_ojs") and collection_path == Path(__file__).with_name("ojs") else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests of the app that are elsewhere: those marked so, and those for delivery over HTTP."""
    if config.getoption("without_ojs"):
        left_out = [each for each in items if each.get_closest_marker("ojs") or "http" in _parameters(each)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [each for each in items if each not in left_out]


def _parameters(item: pytest.Item) -> list[object]:
    callspec = getattr(item, "callspec", None)
    return [] if callspec is None else list(callspec.params.values())


@pytest.fixture(scope="session")
def services(pytestconfig: pytest.Config) -> Services:
    """Return where the servers are, for tests that start processes of their own."""
    return pytestconfig.stash[SERVICES]


@pytest.fixture(autouse=True)
def _punctual(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what this process has learned of its own lateness, which moves the starts of its claims."""
    monkeypatch.setattr("dispatcher.lifecycle.claim._Pace.slack", timedelta(0))


@pytest.fixture(autouse=True)
def _sessions() -> Iterator[None]:
    """End the sessions of the processes that the test has played."""
    from tests import sessions  # noqa: PLC0415 -- Django is not set up when this file is read

    yield
    sessions.end_all()


@pytest.fixture(autouse=True)
def _settings_of_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let DISPATCHER set the engine's constants, too, and serve queues without workers, for there are none here.

    A test of workers sets `queue_grace` itself. Calls go through the broker unless a test says otherwise: admission and
    start are two steps then, which most tests are about.
    """
    read: Callable[[object], Conf] = conf._read  # noqa: SLF001 -- the one place where all tests' settings come by

    def read_for_tests(given: object) -> Conf:
        if not isinstance(given, dict):
            return read(given)
        constants = {name: given[name] for name in asdict(conf.TUNING).keys() & given.keys()}
        settings = read({name: value for name, value in given.items() if name not in constants})
        durations = {
            name: timedelta(seconds=value)
            for name, value in constants.items()
            if isinstance(getattr(conf.TUNING, name), timedelta) and not isinstance(value, timedelta)
        }
        is_open = {} if "queue_grace" in given else {"queue_grace": None}
        delivery = {} if "delivery" in given else {"delivery": {"*": "broker"}}
        return replace(settings, **constants | durations, **is_open, **delivery)

    monkeypatch.setattr(conf, "_read", read_for_tests)
    monkeypatch.setattr(conf, "_Last", type("_Last", (), {"given": object()}))


@pytest.fixture(scope="session")
def pooler(pytestconfig: pytest.Config) -> Pooler:
    """Return the pooler; a test that needs one fails without."""
    if POOLER not in pytestconfig.stash:
        pytest.fail("There is no pooler: run make test-pooler, or pytest --pooler.", pytrace=False)
    return pytestconfig.stash[POOLER]


@pytest.fixture(scope="session")
def django_db_modify_db_settings(django_db_modify_db_settings: None) -> None:
    """Set the search path of the database before it is migrated: functions keep the one that they were made under."""
    from django.db.models.signals import pre_migrate  # noqa: PLC0415 -- there are no settings when this file is read

    pre_migrate.connect(_set_search_path, dispatch_uid="tests")


def _set_search_path(using: str, **_: Any) -> None:
    """Let the clock be stopped for every connection to this database (see tests.clock)."""
    from django.db import connections  # noqa: PLC0415 -- there are no settings when this file is read

    from tests.clock import SEARCH_PATH  # noqa: PLC0415 -- the same

    with connections[using].cursor() as cursor:
        cursor.execute(f'ALTER DATABASE "{connections[using].settings_dict["NAME"]}" SET search_path = {SEARCH_PATH}')
        cursor.execute(f"SET search_path = {SEARCH_PATH}")


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any, pytestconfig: pytest.Config) -> Iterator[None]:
    """Empty tables by deleting, and install the functions as they are written now, frozen or not, with a fault or not.

    At the end the pooler lets go of the database, or it could not be dropped.
    """
    from django.core.management.commands import flush  # noqa: PLC0415 -- there are no settings when this file is read
    from django.db import connection  # noqa: PLC0415 -- the same

    from dispatcher.migrations import _functions  # noqa: PLC0415 -- the same
    from dispatcher.sql import functions  # noqa: PLC0415 -- the same

    name = connection.settings_dict["NAME"]
    connection.close()
    if POOLER in pytestconfig.stash:
        pytestconfig.stash[POOLER].ask(f"RECONNECT {name}")
    with django_db_blocker.unblock(), connection.schema_editor() as editor:
        _functions.install(editor, [*functions.definitions(functions.ddl())])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection.ops, "sql_flush", _deletions)
        patch.setattr(flush, "emit_post_migrate_signal", lambda *_: None)
        yield
    if POOLER in pytestconfig.stash:
        connection.close()
        pytestconfig.stash[POOLER].ask(f"KILL {connection.settings_dict['NAME']}")


def _deletions(style: Any, tables: Sequence[str], **_: bool) -> list[str]:
    """Empty tables in which little is: TRUNCATE makes new files of them and their indexes, and waits for the disk.

    In one trip, and not one for each table: a thousand tests commit. Content types and permissions are kept, which
    Django would make again for each model, at half the cost of most of these tests.
    """
    kept, unmanaged = {"django_content_type", "auth_permission"}, {"dispatcher_note", "dispatcher_start"}
    emptied = sorted({*tables, *unmanaged} - kept)
    return ["; ".join(f'{style.SQL_KEYWORD("DELETE FROM")} "{table}"' for table in emptied)]


def _only_distributes(config: pytest.Config) -> bool:
    """Return whether this process runs no tests itself, but hands them to the processes of pytest-xdist."""
    distributes = config.getoption("dist", "no") != "no" and not config.getoption("collectonly")
    return distributes and not hasattr(config, "workerinput")


def _go_behind_a_pooler(config: pytest.Config, running: ExitStack) -> None:
    services = config.stash[SERVICES]
    try:
        pooler = running.enter_context(pgbouncer(services.run_dir, services.database_url, size=SHARED))
    except PoolerMissing as missing:
        raise pytest.UsageError(str(missing)) from missing
    config.stash[POOLER] = pooler
    config.stash[SERVICES] = replace(services, database_url=pooler.database_url)
    os.environ.update(
        DATABASE_URL=pooler.database_url,
        DATABASE_POOLER="transaction",
        TESTS_DIRECT_DATABASE_URL=pooler.direct_url,
    )


def _stop_waiting_for_the_disk(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET fsync = off")
        connection.execute("ALTER SYSTEM SET full_page_writes = off")
        connection.execute("SELECT pg_reload_conf()")


@pytest.fixture
def without_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be a project that has not installed django-celery-beat."""
    is_installed = apps.is_installed
    monkeypatch.setattr(apps, "is_installed", lambda name: name != "django_celery_beat" and is_installed(name))
