"""One statement per file; `fetch` runs one by its name and returns its rows as frozen dataclasses."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from importlib import resources
from typing import Any, LiteralString, TypeVar, cast

import psycopg
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.rows import class_row
from psycopg.types.json import JsonbLoader

from dispatcher.conf import conf

Row = TypeVar("Row")


@cache
def statement(name: str) -> LiteralString:
    """Return the text of `name`.sql."""
    return cast("LiteralString", resources.files(__name__).joinpath(f"{name}.sql").read_text("utf-8"))


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


def fetch(name: str, row: type[Row], params: Mapping[str, Any]) -> list[Row]:
    """Run `name`.sql and return its rows; a database error comes as django.db's."""
    with _cursor(row) as cursor:
        cursor.execute(statement(name), params, prepare=conf().prepared_statements)
        return cursor.fetchall()


def change(name: str, params: Mapping[str, Any]) -> int:
    """Run `name`.sql, which returns no rows, and return how many it changed."""
    with _cursor(object) as cursor:
        cursor.execute(statement(name), params, prepare=conf().prepared_statements)
        return cursor.rowcount


@contextmanager
def _cursor(row: type[Row]) -> Iterator[psycopg.Cursor[Row]]:
    """Give a cursor that binds parameters on the server, reads jsonb as values, and prepares statements."""
    wrapper = connection()
    wrapper.validate_no_broken_transaction()
    with wrapper.wrap_database_errors:
        wrapper.ensure_connection()
        raw: psycopg.Connection[Any] = wrapper.connection
        if raw.prepare_threshold is None and conf().prepared_statements:
            raw.prepare_threshold = 5
        with psycopg.Cursor(raw, row_factory=class_row(row)) as cursor:
            cursor.adapters.register_loader("jsonb", JsonbLoader)
            yield cursor
