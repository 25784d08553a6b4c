"""Tables whose statistics mislead the planner: what is hot must cost what it touches under each of these shapes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from django.db import connection

from tests.contracts.large import EMPTY, TABLES, fill, run
from tests.races.lockstep import eventually

_FORGET: Final = (
    "DELETE FROM pg_statistic WHERE starelid IN (SELECT oid FROM pg_class WHERE relname LIKE 'dispatcher_%')"
)
_END_MOST: Final = """
UPDATE dispatcher_callqueue
   SET state = 'completed', finished_at = now()
 WHERE state = 'available' AND lane_id = 1 AND id < '00000000-0000-7000-8000-000000004a00'
"""
"""Of the calls that wait in the first lane nearly all: each leaves a dead row, at the front of it."""

COLD: Final = "filled since it was analyzed"
DEAD: Final = "most rows are dead"


def _wait_until_dead_for_all() -> None:
    """Wait for the transactions that began before: until they end, an index scan marks no row of now as dead.

    Those of other databases of the server count, too.
    """
    with connection.cursor() as cursor:
        # Without a transaction id of its own, whose commit would not be on the disk yet.
        cursor.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text")
        (following,) = cursor.fetchone()

        def is_oldest() -> bool:
            cursor.execute("SELECT pg_snapshot_xmin(pg_current_snapshot()) >= %s::xid8", [following])
            return bool(cursor.fetchone()[0])

        eventually(is_oldest)


@contextmanager
def shaped(name: str) -> Iterator[None]:
    """Fill the tables in one of these shapes, out of autovacuum's reach, and empty them at the end."""
    tables = TABLES.split(", ")
    run(*(f"ALTER TABLE {table} SET (autovacuum_enabled = false)" for table in tables))
    try:
        run(EMPTY, _FORGET, f"ANALYZE {TABLES}")
        fill()
        if name == DEAD:
            # An index scan marks no row as dead until the commit that ended it is on the disk.
            run("SET synchronous_commit = on", _END_MOST, f"ANALYZE {TABLES}", "RESET synchronous_commit")
        _wait_until_dead_for_all()
        yield
    finally:
        run(EMPTY, _FORGET, *(f"ALTER TABLE {table} RESET (autovacuum_enabled)" for table in tables))
