"""Releases of the code on one database: each installs functions of its own, and calls them by their names."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import local
from typing import Any, Final

import pytest
from django.db import connection

from dispatcher import sql
from dispatcher.migrations import _functions
from dispatcher.migrations._functions import InstallFunctions
from dispatcher.sql import functions
from dispatcher.sql.statements import Statement

_acting: Final = local()


def run(operation: Any, *, backwards: bool = False) -> None:
    """Run an operation of a migration."""
    with connection.schema_editor() as editor:
        (operation.database_backwards if backwards else operation.database_forwards)("dispatcher", editor, None, None)


def install() -> None:
    """Install the functions as they are written."""
    with connection.schema_editor() as editor:
        _functions.install(editor, [*functions.definitions(functions.ddl())])


def uninstall() -> None:
    """Let the database be as it is before the migration that installs them."""
    with connection.schema_editor() as editor:
        _functions.show(editor, gone=functions.version())
        for each in reversed([*functions.definitions(functions.ddl())]):
            editor.execute(f"DROP {each.kind} IF EXISTS {each.name}", params=None)


def install_another(folder: Path, patch: pytest.MonkeyPatch) -> str:
    """Install the functions of another release, which do the same; return their version.

    folder: for its texts. Threads can act as its code from now on, see `acting_as`.
    """
    texts = folder / "texts"
    texts.mkdir()
    for file in functions.FOLDER.glob("*.sql"):
        (texts / file.name).write_text(file.read_text().replace("LANGUAGE", "LANGUAGE "))
    version = functions.version(texts)
    patch.setattr(_functions, "FOLDER", folder)
    _functions.copy_of(version).write_text(functions.ddl(texts))
    run(InstallFunctions(version))
    known = sql.statement

    def statement(name: str) -> Statement:
        found = known(name)
        return replace(found, text=found.text.replace(f"_{functions.version()}", f"_{_version()}"))

    patch.setattr(sql, "statement", statement)
    return version


def _version() -> str:
    return getattr(_acting, "version", functions.version())


@contextmanager
def acting_as(version: str) -> Iterator[None]:
    """Let this thread act as the code of a release."""
    _acting.version = version
    try:
        yield
    finally:
        del _acting.version


def installed() -> set[str]:
    """Return the versions of which the database has a function or a type."""
    with connection.cursor() as cursor:
        cursor.execute(
            r"SELECT DISTINCT substring(name FROM '^dispatcher_\w+_([0-9a-f]{8})$')"
            " FROM (SELECT proname FROM pg_proc UNION SELECT typname FROM pg_type WHERE typtype = 'c') AS made (name)"
        )
        return {version for (version,) in cursor.fetchall() if version is not None}
