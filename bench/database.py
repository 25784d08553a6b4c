"""What the benchmarks ask the database, past Django, and the kernel about its processes."""

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import psutil
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


def sessions() -> list[int]:
    """Return the processes of the server that have a session of the database."""
    return [pid for (pid,) in execute("SELECT pid FROM pg_stat_activity WHERE datname = current_database()")]


def cpu_ms(pid: int) -> float:
    """Return the milliseconds of CPU that the threads of a process have used, by the kernel's account."""
    return sum(int(each.read_text().split()[0]) for each in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e6


def family_cpu_ms(pid: int) -> float:
    """Return the same of a process and all that it has started."""
    return sum(map(cpu_ms, [pid, *(each.pid for each in psutil.Process(pid).children(recursive=True))]))
