"""One statement per file; `fetch` runs one by its name and returns its rows as frozen dataclasses.

A trip to the server costs more than most of the statements, so those that do not need each other's rows are
sent together: `ask` several inside `together()`, and read their `rows` after it.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Generic, LiteralString, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.rows import class_row
from psycopg.types.json import JsonbLoader

from dispatcher.conf import conf

Row = TypeVar("Row")

_cursors: WeakKeyDictionary[psycopg.Connection[Any], dict[tuple[str, type], psycopg.Cursor[Any]]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Asked(Generic[Row]):
    """A statement on its way; read its rows after `together()`."""

    cursor: psycopg.Cursor[Row]

    def rows(self) -> list[Row]:
        """Return the rows; a database error comes as django.db's."""
        with connection().wrap_database_errors:
            return self.cursor.fetchall()

    def row(self) -> Row:
        """Return the only row."""
        (row,) = self.rows()
        return row


@cache
def statement(name: str) -> LiteralString:
    """Return the text of `name`.sql: its name, and the statement without comments and indents.

    psycopg keeps what it has parsed only of texts up to 4,096 characters.
    """
    lines = resources.files(__name__).joinpath(f"{name}.sql").read_text("utf-8").splitlines()
    text = " ".join(line.strip() for line in lines if not line.lstrip().startswith("--"))
    return f"/* {name} */ {text}"


def names() -> list[str]:
    """Return the name of every statement."""
    files = (entry.name for entry in resources.files(__name__).iterdir())
    return sorted(name.removesuffix(".sql") for name in files if name.endswith(".sql"))


def connection() -> BaseDatabaseWrapper:
    """Return this thread's connection to the dispatcher's database."""
    return connections[conf().database]


def atomic() -> AbstractContextManager[None]:
    """Open a transaction on the dispatcher's database."""
    return transaction.atomic(using=conf().database)


@contextmanager
def own_transaction() -> Iterator[None]:
    """Open a transaction of the engine's own; its begin and commit travel with the statements inside."""
    is_own = not connection().in_atomic_block
    with _pipeline(), atomic():
        if is_own:
            ask("tune", object, {})
        yield


@contextmanager
def together() -> Iterator[None]:
    """Send the statements asked inside in one go, as one transaction; within the caller's they go one by one."""
    is_own = not connection().in_atomic_block
    with _pipeline():
        if is_own and conf().pipeline:
            ask("tune", object, {})
        yield


@contextmanager
def _pipeline() -> Iterator[None]:
    wrapper = connection()
    if wrapper.in_atomic_block or not conf().pipeline:
        yield
        return
    with wrapper.wrap_database_errors:
        _make_ready(wrapper)
        raw: psycopg.Connection[Any] = wrapper.connection
        with raw.pipeline():
            yield


def ask(name: str, row: type[Row], params: Mapping[str, Any]) -> Asked[Row]:
    """Run `name`.sql; its rows are there at the end of `together()`, or at once outside of it."""
    wrapper = connection()
    wrapper.validate_no_broken_transaction()
    with wrapper.wrap_database_errors:
        _make_ready(wrapper)
        cursor = _cursor(wrapper, name, row)
        cursor.execute(statement(name), params, prepare=_prepares(wrapper))
        return Asked(cursor)


def fetch(name: str, row: type[Row], params: Mapping[str, Any]) -> list[Row]:
    """Run `name`.sql and return its rows; a database error comes as django.db's."""
    return ask(name, row, params).rows()


def change(name: str, params: Mapping[str, Any]) -> int:
    """Run `name`.sql, which returns no rows, and return how many it changed."""
    return ask(name, object, params).cursor.rowcount


def _make_ready(wrapper: BaseDatabaseWrapper) -> None:
    """Connect; a connection that was kept is checked first where CONN_HEALTH_CHECKS asks for it, as Django does."""
    wrapper.close_if_health_check_failed()
    wrapper.ensure_connection()


def _prepares(wrapper: BaseDatabaseWrapper) -> bool:
    wanted = conf().prepared_statements
    return wanted if wanted is not None else not wrapper.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS")


def _cursor(wrapper: BaseDatabaseWrapper, name: str, row: type[Row]) -> psycopg.Cursor[Row]:
    """Give the connection's cursor for a statement: it binds on the server, prepares, and reads jsonb as values."""
    raw: psycopg.Connection[Any] = wrapper.connection
    known = _cursors.setdefault(raw, {})
    cursor = known.get((name, row))
    if cursor is None:
        if raw.prepare_threshold is None and _prepares(wrapper):
            raw.prepare_threshold = 5
            raw.prepared_max = max(raw.prepared_max or 0, 100)
        cursor = known[name, row] = psycopg.Cursor(raw, row_factory=class_row(row))
        cursor.adapters.register_loader("jsonb", JsonbLoader)
    return cursor
