"""A clock of the database that is stopped until a test sets it forward; for all connections of the test's database.

The engine asks the database for the time, and nothing else. While the clock is stopped, `clock_timestamp()` is found in
a schema of the tests before PostgreSQL's own, so every statement, unchanged, sees the time that the test has set.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from django.db import connection

T0 = datetime(2030, 1, 1, 12, tzinfo=UTC)
"""When a stopped clock begins."""

SEARCH_PATH = 'clock, "$user", public, pg_catalog'
"""The search path of the test's database (see django_db_setup): the schema exists only while the clock is stopped."""

_STOP = """
CREATE SCHEMA clock;
CREATE TABLE clock.stopped AS SELECT %s::timestamptz AS at, NULL::timestamptz AS running_since;
CREATE FUNCTION clock.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
'SELECT at + COALESCE(pg_catalog.clock_timestamp() - running_since, interval ''0'') FROM clock.stopped'
"""


class Clock:
    """The stopped clock."""

    def __init__(self, now: datetime) -> None:
        self.now = now

    def forward(self, seconds: float) -> None:
        """Let so many seconds pass."""
        self.set(self.now + timedelta(seconds=seconds))

    def set(self, now: datetime) -> None:
        """Set the time."""
        self.now = now
        with connection.cursor() as cursor:
            cursor.execute("UPDATE clock.stopped SET at = %s", [now])

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let the time pass by itself, for processes that race."""
        with connection.cursor() as cursor:
            cursor.execute("UPDATE clock.stopped SET running_since = pg_catalog.clock_timestamp()")
            try:
                yield
            finally:
                cursor.execute(
                    "UPDATE clock.stopped SET at = clock.clock_timestamp(), running_since = NULL RETURNING at"
                )
                (self.now,) = cursor.fetchone()


@contextmanager
def stopped_clock(now: datetime = T0) -> Iterator[Clock]:
    """Stop the clock at this time."""
    with connection.cursor() as cursor:
        cursor.execute("DROP SCHEMA IF EXISTS clock CASCADE")
        # Statements that were prepared before are analyzed again, since the schema changes their search path.
        cursor.execute(_STOP, [now])
    try:
        yield Clock(now)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP SCHEMA clock CASCADE")
