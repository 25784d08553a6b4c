"""A large system, and the same one small: what a statement or a trip touches must not depend on which it is."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from django.db import connection

NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)
CALLS: Final = 20_000
LANES: Final = 2_000

# Keys: 1 is hot, 2 is full, and each later one has a lane. Lanes: of 1 most of the backlog waits, and it is ready; 2
# is ready in a queue of the broker's, 3 in one that is fetched from; the next half is parked on key 2, the last half
# sleeps. Calls: beside the backlog one waits in each parked lane; 200 wait for their time, 200 are dispatched, 200 are
# active, the others have ended. The ticket and the claim of a call are its id.
_FILL: Final = """
INSERT INTO dispatcher_ratelimitkey (id, name, concurrency, rate_limit, rate_period, is_paused)
SELECT n, 'key:' || n, CASE n WHEN 1 THEN 1000 ELSE 1 END, CASE n WHEN 1 THEN 100000 END,
       CASE n WHEN 1 THEN interval '1 minute' END, false
  FROM generate_series(1, LANES) AS n;

INSERT INTO dispatcher_queue (name, delivery, on_full, warn_at)
VALUES ('direct', 'direct', 'reject', 0.8), ('pulled', 'http', 'reject', 0.8);

INSERT INTO dispatcher_lane (id, queue, priority, on_limit, key_ids)
SELECT n, CASE n WHEN 2 THEN 'served' WHEN 3 THEN 'pulled' ELSE 'direct' END, 0, 'wait',
       CASE WHEN n <= 3 THEN ARRAY[1] WHEN n <= LANES / 2 THEN ARRAY[2, n] ELSE ARRAY[n] END
  FROM generate_series(1, LANES) AS n;

UPDATE dispatcher_lanesite SET place = CASE WHEN lane_id <= 3 THEN 0 ELSE 2 END WHERE lane_id <= LANES / 2;

SELECT setval(pg_get_serial_sequence('dispatcher_' || name, 'id'), 1000000)
  FROM unnest(ARRAY['ratelimitkey', 'lane']) AS name;

INSERT INTO dispatcher_worker
       (id, name, host, pid, pool, processes, queues, tasks, started_at, seen_at, serves_until)
SELECT ('00000000-0000-7000-9000-' || lpad(to_hex(n), 12, '0'))::uuid, 'celery@' || n, 'host', n, 'prefork', 8,
       ARRAY[CASE WHEN n = 1 THEN 'served' ELSE 'other' END], ARRAY['noop'], timestamptz '2029-12-31',
       timestamptz '2030-01-01', timestamptz '2040-01-01'
  FROM generate_series(1, 20) AS n;

INSERT INTO dispatcher_process (id, worker_id, queues, idle_at)
SELECT worker.id, worker.id, ARRAY['other'], worker.seen_at FROM dispatcher_worker AS worker;

INSERT INTO dispatcher_callqueue
       (id, lane_id, task, args, kwargs, meta, queue, priority, on_limit, costs, state, attempt, errors,
        scheduled_at, expires_at, ticket, claim, dispatched_at, published_at, started_at, finished_at)
SELECT id, lane_id, 'noop', '[]', '{}', '{}', CASE lane_id WHEN 2 THEN 'served' WHEN 3 THEN 'pulled' ELSE 'direct' END,
       0, 'wait', '{}', state, 0, '[]',
       CASE state WHEN 'scheduled' THEN timestamptz '2030-01-01' + (n % 200 - 20) * interval '1 second' END,
       CASE WHEN n % 1000 = 0 THEN timestamptz '2029-12-31' END,
       CASE WHEN state IN ('dispatched', 'active') THEN id END, CASE WHEN state = 'active' THEN id END,
       CASE WHEN state IN ('dispatched', 'active') THEN timestamptz '2029-12-31' END,
       CASE WHEN state = 'active' THEN timestamptz '2029-12-31' END,
       CASE WHEN state = 'active' THEN timestamptz '2029-12-31' END,
       CASE WHEN state = 'completed' THEN timestamptz '2029-12-01' + n % 1000 * interval '5 minutes' END
  FROM (SELECT n, ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid AS id,
               CASE WHEN n BETWEEN 4 AND LANES / 2 THEN n WHEN n BETWEEN LANES / 2 + 1 AND LANES / 2 + 40 THEN 2
                    WHEN n BETWEEN LANES / 2 + 41 AND LANES / 2 + 80 THEN 3 ELSE 1 END AS lane_id,
               CASE WHEN n <= CALLS THEN 'available' WHEN n <= CALLS + 200 THEN 'dispatched'
                    WHEN n <= CALLS + 400 THEN 'active' WHEN n <= CALLS + 600 THEN 'scheduled'
                    ELSE 'completed' END AS state
          FROM generate_series(1, CALLS * 3 / 2 + 600) AS n) AS numbered;

-- The last one of those that are active holds the key that is full.
INSERT INTO dispatcher_slot (call_id, key_id, cost, lease_until, started_at)
SELECT call.id, CASE WHEN lead(call.id) OVER (ORDER BY call.id) IS NULL THEN 2 ELSE 1 END, 1, timestamptz '2030-01-01',
       call.started_at
  FROM dispatcher_callqueue AS call
 WHERE call.state IN ('dispatched', 'active');

INSERT INTO dispatcher_start (key_id, at, total, cost, last_cost)
SELECT 1 + n % 100, timestamptz '2029-12-31' + n * interval '1 second', n / 100 + 1, 1, 1
  FROM generate_series(0, CALLS) AS n;
"""
TABLES: Final = ", ".join(
    f"dispatcher_{name}"
    for name in "callqueue lane lanesite ratelimitkey slot start note worker queue process".split()  # noqa: SIM905
)
EMPTY: Final = f"TRUNCATE {TABLES} CASCADE"


def call_id(number: int) -> UUID:
    """Return the id of a call by its number in the order of their creation."""
    return UUID(f"00000000-0000-7000-8000-{number:012x}")


def run(*texts: str) -> None:
    """Run statements."""
    with connection.cursor() as cursor:
        for text in texts:
            cursor.execute(text)


def fill(*, calls: int = CALLS, lanes: int = LANES) -> None:
    """Fill the tables, which are empty."""
    run("SET synchronous_commit = off", _FILL.replace("CALLS", str(calls)).replace("LANES", str(lanes)))
    run("RESET synchronous_commit")


@contextmanager
def large(*, calls: int = CALLS, lanes: int = LANES) -> Iterator[None]:
    """Fill the tables, and empty them at the end."""
    run(EMPTY)
    fill(calls=calls, lanes=lanes)
    run(f"VACUUM (ANALYZE) {TABLES}")
    yield
    run(EMPTY)
