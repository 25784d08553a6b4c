"""A clock of the database that stands still until it is set forward.

The engine asks the database for the time, and for nothing else. So `clock_timestamp()` is found in a schema of the
tests first, and every statement, unchanged, sees the time that is set here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from django.db import connection

_MAKE = """
CREATE SCHEMA IF NOT EXISTS model;
CREATE OR REPLACE FUNCTION model.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
    AS $$ SELECT current_setting('model.now')::timestamptz $$;
SET search_path = model, pg_catalog, public;
SET synchronous_commit = off
"""
_END = "RESET search_path; RESET synchronous_commit; DROP SCHEMA model CASCADE"


@contextmanager
def stopped_clock() -> Iterator[None]:
    """Let this connection ask for the time that `set_clock` sets."""
    with connection.cursor() as cursor:
        cursor.execute(_MAKE)
        try:
            yield
        finally:
            cursor.execute(_END)


def set_clock(now: datetime) -> None:
    """Say what time it is for the statements to come."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('model.now', %s, false)", [now.isoformat()])
