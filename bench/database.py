"""The database of the benchmarks: one of their own on the server at hand, dropped at the end."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import resources
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from project.services import Services, create_database


@contextmanager
def database(services: Services) -> Iterator[str]:
    """Make it, empty, beside the one that is given; yield its address."""
    name = f"{urlsplit(services.database_url).path.removeprefix('/')}_bench"
    create_database(services.database_url, name, replace=True)
    try:
        yield urlsplit(services.database_url)._replace(path=f"/{name}").geturl()
    finally:
        with psycopg.connect(services.database_url, autocommit=True) as connection:
            drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
            connection.execute(drop.format(sql.Identifier(name)))


def run(name: str, params: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
    """Run `name`.sql in a transaction of its own, and return its rows."""
    return execute(resources.files("bench.sql").joinpath(f"{name}.sql").read_text("utf-8"), params)


def execute(text: str, params: Mapping[str, Any] | Sequence[Any] | None = None) -> list[Any]:
    """Run a statement as psycopg does, without Django between; return its rows."""
    from django.db import connection as ours  # noqa: PLC0415 - Django is set up when the database is there

    ours.ensure_connection()
    connection: psycopg.Connection[Any] = ours.connection
    with psycopg.Cursor(connection) as cursor:
        cursor.execute(text, params)
        return cursor.fetchall() if cursor.description else []


def tidy() -> None:
    """Bring statistics and visibility up to date, so that no vacuum comes in between."""
    execute("VACUUM (ANALYZE)")
