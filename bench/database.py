"""What the benchmarks ask the database, past Django."""

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import psycopg


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
