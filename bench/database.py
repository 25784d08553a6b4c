"""The databases of the benchmarks: two of their own on the server at hand, dropped at the end."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import resources
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from project.services import Services, create_database

NAMES = ("bench", "bench_beside")


@contextmanager
def databases(services: Services) -> Iterator[list[str]]:
    """Make both databases, empty, beside the one that is given; yield their addresses."""
    names = [f"{_name(services.database_url)}_{name}" for name in NAMES]
    try:
        for name in names:
            create_database(services.database_url, name, replace=True)
        yield [_address(services.database_url, name) for name in names]
    finally:
        with psycopg.connect(services.database_url, autocommit=True) as connection:
            for name in names:
                drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
                connection.execute(drop.format(sql.Identifier(name)))


def run(name: str, params: Mapping[str, Any] | None = None, *, using: str = "default") -> list[tuple[Any, ...]]:
    """Run `name`.sql in a transaction of its own, and return its rows."""
    return execute(statement(name), params, using=using)


def execute(text: str, params: Mapping[str, Any] | Sequence[Any] | None = None, *, using: str = "default") -> list[Any]:
    """Run a statement as psycopg does, without Django between; return its rows."""
    from django.db import connections  # noqa: PLC0415 - Django is set up when the databases are there

    connections[using].ensure_connection()
    connection: psycopg.Connection[Any] = connections[using].connection
    with psycopg.Cursor(connection) as cursor:
        cursor.execute(text, params)
        return cursor.fetchall() if cursor.description else []


def statement(name: str) -> str:
    """Return the text of `name`.sql."""
    return resources.files("bench.sql").joinpath(f"{name}.sql").read_text("utf-8")


def tidy(*aliases: str) -> None:
    """Bring statistics and visibility up to date, so that no vacuum comes in between."""
    for alias in aliases:
        execute("VACUUM (ANALYZE)", using=alias)


def _name(url: str) -> str:
    return urlsplit(url).path.removeprefix("/")


def _address(url: str, name: str) -> str:
    return urlsplit(url)._replace(path=f"/{name}").geturl()
