"""Tables whose statistics mislead the planner: a statement must cost what it touches under each of these shapes.

Lanes 1 to 10,000 have the keys `key:1` to `key:10000`. The first 100 are awake; the next 3,000 are parked on `key:1`;
the next 3,000 are held by the queue `held`; the others are asleep, in the queue `queue` as the first ones. A hundred
thousand calls wait, in the first lane; 500 are in flight; 5,000 have ended in the queue `lone`. No call waits in
the lanes `LONE` and `HOT`, each the only one of the queue `lone` or `hot` with the key of the same name;
20,000 slots are in flight under `hot`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from django.db import connection
from django.db.backends.utils import CursorWrapper

from tests.races.lockstep import eventually

WAITING: Final = 100_000
LANES: Final = 10_000
LONE: Final = LANES + 1
"""The id of a lane, and of its key: no call waits there, and none is in flight."""
HOT: Final = LANES + 2
"""The id of a lane, and of its key: no call waits there, and 20,000 are in flight."""

_TABLES: Final = (
    "dispatcher_callqueue",
    "dispatcher_lane",
    "dispatcher_ratelimitkey",
    "dispatcher_slot",
    "dispatcher_window",
)
_FILL: Final = """
INSERT INTO dispatcher_ratelimitkey
       (id, name, concurrency, rate_limit, rate_period, is_paused, counted_admissions, most_held, most_unstarted)
SELECT n, 'key:' || n, 1, 100, interval '1 minute', false, NULL, NULL, NULL FROM generate_series(1, 10000) AS n
 UNION ALL VALUES (10001, 'lone', 10, 10, interval '1 minute', false, NULL, NULL, NULL),
                  (10002, 'hot', 100000, 100000, interval '1 minute', false, 0, 20100, 20100);

INSERT INTO dispatcher_lane (id, queue, priority, on_limit, key_ids, is_awake, parked_on_id, is_held)
SELECT n, CASE WHEN n BETWEEN 3101 AND 6100 THEN 'held' ELSE 'queue' END, 0, 'wait', ARRAY[n::bigint], n <= 100,
       CASE WHEN n BETWEEN 101 AND 3100 THEN 1 END, n BETWEEN 3101 AND 6100
  FROM generate_series(1, 10000) AS n
 UNION ALL VALUES (10001, 'lone', 0, 'wait', ARRAY[10001::bigint], false, NULL::int, false),
                  (10002, 'hot', 0, 'wait', ARRAY[10002::bigint], false, NULL, false);

SELECT setval(pg_get_serial_sequence('dispatcher_' || name, 'id'), 20000)
  FROM unnest(ARRAY['ratelimitkey', 'lane']) AS name;

INSERT INTO dispatcher_slot (call_id, key_id, cost, lease_until)
SELECT gen_random_uuid(), 10002, 1, '2040-01-01' FROM generate_series(1, 20000);

INSERT INTO dispatcher_window (key_id, place, cost, last_start_at)
SELECT key, place, 1, now() FROM generate_series(1, 1000) AS key, generate_series(1, 20) AS place;

INSERT INTO dispatcher_callqueue
       (id, lane_id, task, args, kwargs, meta, queue, priority, on_limit, costs, state, attempt, errors, ticket)
SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 1, 'noop', '[]', '{}', '{}', 'queue', 0,
       'wait', '{}', CASE WHEN n > 100000 THEN 'dispatched' ELSE 'available' END, 0, '[]',
       CASE WHEN n > 100000 THEN gen_random_uuid() END
  FROM generate_series(1, 100500) AS n;

INSERT INTO dispatcher_callqueue
       (id, lane_id, task, args, kwargs, meta, queue, priority, on_limit, costs, state, attempt, errors, created_at,
        finished_at)
SELECT gen_random_uuid(), 10001, 'noop', '[]', '{}', '{}', 'lone', 0, 'wait', '{}', 'completed', 1, '[]',
       now() - n * interval '1 minute', now() - n * interval '1 minute'
  FROM generate_series(1, 5000) AS n;

INSERT INTO dispatcher_slot (call_id, key_id, cost, lease_until)
SELECT call.id, call.lane_id, 1, '2040-01-01' FROM dispatcher_callqueue AS call WHERE call.state = 'dispatched';
"""
_ANALYZE: Final = f"ANALYZE {', '.join(_TABLES)}"
_EMPTY: Final = f"TRUNCATE {', '.join(_TABLES)} CASCADE"
_FORGET: Final = (
    "DELETE FROM pg_statistic WHERE starelid IN (SELECT oid FROM pg_class WHERE relname LIKE 'dispatcher_%')"
)
_END_MOST: Final = """
UPDATE dispatcher_callqueue
   SET state = 'completed', finished_at = now()
 WHERE state = 'available' AND id < '00000000-0000-7000-8000-000000017700'
"""
"""Of the 96,000 calls that waited longest, each leaves a dead row, at the front of its lane."""

COLD: Final = "filled since it was analyzed"
DEAD: Final = "most rows are dead"
SHAPES: Final[dict[str, Sequence[str]]] = {COLD: [_ANALYZE, _FILL], DEAD: [_FILL, _END_MOST, _ANALYZE]}
"""What makes each shape, statement by statement, each committed."""


def _wait_until_dead_for_all(cursor: CursorWrapper) -> None:
    """Wait for the transactions that began before: until they end, an index scan marks no row of now as dead.

    Those of other databases of the server count, too.
    """
    # Without a transaction id of its own, whose commit would not be on the disk yet.
    cursor.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text")
    (following,) = cursor.fetchone()

    def is_oldest() -> bool:
        cursor.execute("SELECT pg_snapshot_xmin(pg_current_snapshot()) >= %s::xid8", [following])
        return bool(cursor.fetchone()[0])

    eventually(is_oldest)


@contextmanager
def shaped(name: str) -> Iterator[None]:
    """Fill the tables in one of the `SHAPES`, out of autovacuum's reach, and empty them at the end."""
    with connection.cursor() as cursor:
        for table in _TABLES:
            cursor.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
        # An index scan marks no row as dead until the commit that ended it is on the disk.
        cursor.execute("SET synchronous_commit = on")
        try:
            for statement in (_EMPTY, _FORGET, *SHAPES[name]):
                cursor.execute(statement)
            _wait_until_dead_for_all(cursor)
            yield
        finally:
            for statement in (
                "RESET synchronous_commit",
                _EMPTY,
                _FORGET,
                *(f"ALTER TABLE {table} RESET (autovacuum_enabled)" for table in _TABLES),
            ):
                cursor.execute(statement)
