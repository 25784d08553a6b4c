"""Connections of the tests' own: straight to the server, also where the engine's go through a pooler."""

import os
from functools import cache
from typing import Any

import psycopg
from django.db import connection

DIRECT = "TESTS_DIRECT_DATABASE_URL"
"""The variable that names the server behind the pooler; not set where there is none."""


def connect(**options: Any) -> psycopg.Connection[Any]:
    """Open a connection to the database of the tests."""
    given = os.environ.get(DIRECT)
    if given is None:
        return psycopg.connect(**{**connection.get_connection_params(), "autocommit": True, **options})
    return psycopg.connect(given, **{"dbname": connection.settings_dict["NAME"], "autocommit": True, **options})


@cache
def monitor() -> psycopg.Connection[Any]:
    """Return the connection that looks at what the others do; in no database that a test run makes and drops."""
    return connect(dbname="postgres")


def backends(name: str) -> set[int]:
    """Return the server's processes that have served a client of this application name last."""
    rows = monitor().execute("SELECT pid FROM pg_stat_activity WHERE application_name = %s", [name])
    return {pid for (pid,) in rows}


def stands_still(name: str) -> bool:
    """Return whether a client of this application name has left a transaction open for a while."""
    found = monitor().execute(
        "SELECT FROM pg_stat_activity WHERE application_name = %s AND state = 'idle in transaction'"
        " AND state_change < clock_timestamp() - interval '300 milliseconds'",
        [name],
    )
    return found.rowcount > 0


def blockers(waiting: set[int]) -> set[int]:
    """Return the processes that hold up any of these, those behind them included."""
    known: set[int] = set()
    found = waiting
    while found - known:
        known |= found
        rows = monitor().execute("SELECT unnest(pg_blocking_pids(pid)) FROM unnest(%s) AS waiting (pid)", [list(found)])
        found = {pid for (pid,) in rows}
    return known - waiting


def end(name: str) -> None:
    """End what a client of this name waits for or holds; an idle process is left alone."""
    monitor().execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s AND state <> 'idle'", [name]
    )
