"""A large system: a million calls wait, most of them in one lane; a hundred thousand lanes, ten thousand keys."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from django.db import connection, transaction

WAITING: Final = 1_000_000
NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)

# Lanes: 1 has most of the backlog; 2 to 1,001 have a hundred calls each; the next 10,000 are parked on key 1; the next
# 10,000 are held by two queues, one served and one not; 90,000 sleep; 10,000 more are held by a direct queue, and 1,000
# by one that workers fetch from. Calls: a million waits, 20,000 wait for their time, 1,000 are in flight, 50,000 have
# ended.
# The ticket and the claim of a call are its id.
FILL = """
INSERT INTO dispatcher_ratelimitkey (id, name, concurrency, is_paused, opens_at)
SELECT n, 'key:' || n, 1, false,
       CASE WHEN n > 9990 THEN timestamptz '2029-12-31' WHEN n > 5000 THEN timestamptz '2031-01-01' END
  FROM generate_series(1, 10000) AS n;

INSERT INTO dispatcher_lane (id, queue, priority, on_limit, key_ids, is_awake, parked_on_id, is_held)
SELECT n,
       CASE WHEN n NOT BETWEEN 11002 AND 21001 THEN 'queue' || n % 10 WHEN n % 2 = 0 THEN 'served' ELSE 'nowhere' END,
       n % 3, 'wait', ARRAY[1 + n % 10000, 10000 + n], n <= 200,
       CASE WHEN n BETWEEN 1002 AND 11001 THEN 1 END, n BETWEEN 11002 AND 21001
  FROM generate_series(1, 111001) AS n;

INSERT INTO dispatcher_worker
       (id, name, host, pid, pool, processes, queues, tasks, started_at, seen_at, serves_until)
SELECT gen_random_uuid(), 'celery@' || n, 'host', n, 'prefork', 8,
       ARRAY[CASE WHEN n = 1 THEN 'served' ELSE 'other' END], ARRAY['noop'], timestamptz '2029-12-31',
       timestamptz '2030-01-01', timestamptz '2040-01-01'
  FROM generate_series(1, 50) AS n;

INSERT INTO dispatcher_queue (name, delivery, on_full, warn_at)
VALUES ('direct', 'direct', 'reject', 0.8), ('pulled', 'http', 'reject', 0.8);

INSERT INTO dispatcher_lane (id, queue, priority, on_limit, key_ids, is_held)
SELECT 200000 + n, 'direct', 0, 'wait', ARRAY[1002 + n % 3998, 5001 + n % 4990], true
  FROM generate_series(1, 10000) AS n;

INSERT INTO dispatcher_lane (id, queue, priority, on_limit, key_ids, is_held)
SELECT 300000 + n, 'pulled', 0, 'wait', ARRAY[1002 + n % 3998], true
  FROM generate_series(1, 1000) AS n;

INSERT INTO dispatcher_feed (worker_id, queues, reached_key_ids, idle_at)
SELECT worker.id, ARRAY['direct'], '{}', worker.seen_at FROM dispatcher_worker AS worker;

INSERT INTO dispatcher_lane (id, queue, priority, on_limit, key_ids) VALUES (1000000, 'lone', 0, 'wait', ARRAY[5000]);

INSERT INTO dispatcher_callqueue
       (id, lane_id, task, args, kwargs, meta, queue, priority, on_limit, costs, state, attempt, errors,
        scheduled_at, expires_at, ticket, claim, dispatched_at, published_at, started_at, finished_at)
SELECT id,
       CASE WHEN n <= 900000 THEN 1 WHEN n BETWEEN 999991 AND 1000000 THEN n - 799990 ELSE 2 + n % 1000 END,
       'noop', '[]', '{}', '{}', 'queue', 0, 'wait', '{}', state, 0, '[]',
       CASE WHEN state IN ('scheduled', 'retryable')
            THEN timestamptz '2030-01-01' + (n % 10000 - 700) * interval '1 second' END,
       CASE WHEN n % 10000 = 0 THEN timestamptz '2030-01-01' + (n - 20000) * interval '1 second' END,
       CASE WHEN state IN ('dispatched', 'active') THEN id END, CASE WHEN state = 'active' THEN id END,
       CASE WHEN state IN ('dispatched', 'active') THEN timestamptz '2029-12-31' END,
       CASE WHEN state = 'active' THEN timestamptz '2029-12-31' END,
       CASE WHEN state = 'active' THEN timestamptz '2029-12-31' END,
       CASE WHEN state = 'completed' THEN timestamptz '2029-12-01' + n % 10000 * interval '5 minutes' END
  FROM (SELECT n, ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid AS id,
               CASE WHEN n <= 1000000 THEN 'available'
                       WHEN n <= 1010000 THEN 'scheduled'
                       WHEN n <= 1020000 THEN 'retryable'
                       WHEN n <= 1020500 THEN 'dispatched'
                       WHEN n <= 1021000 THEN 'active'
                       ELSE 'completed' END AS state
          FROM generate_series(1, 1071000) AS n) AS numbered;

-- A thousand of those that wait for their time came back without a start.
UPDATE dispatcher_callqueue
   SET returns = 1, queue = 'served'
 WHERE state = 'scheduled' AND id <= '00000000-0000-7000-8000-0000000f4628';

INSERT INTO dispatcher_slot (call_id, key_id, cost, lease_until)
SELECT id, 1 + row_number() OVER () % 10000, 1, '2030-01-01'
  FROM dispatcher_callqueue
 WHERE state IN ('dispatched', 'active');

INSERT INTO dispatcher_window (key_id, place, cost, last_start_at)
SELECT key, part, 1,
       timestamptz '2029-12-31' + part * interval '1 second'
  FROM generate_series(1, 1000) AS key, generate_series(1, 100) AS part;

ANALYZE dispatcher_worker, dispatcher_ratelimitkey, dispatcher_lane, dispatcher_callqueue, dispatcher_slot,
        dispatcher_window, dispatcher_queue, dispatcher_feed;
"""
EMPTY = """
TRUNCATE dispatcher_callqueue, dispatcher_lane, dispatcher_ratelimitkey, dispatcher_slot, dispatcher_window,
         dispatcher_worker, dispatcher_queue, dispatcher_feed CASCADE
"""


def call_id(number: int) -> UUID:
    """Return the id of a call by its number in the order of their creation."""
    return UUID(f"00000000-0000-7000-8000-{number:012x}")


IN_FLIGHT: Final = call_id(WAITING + 20_001)
RUNNING: Final = call_id(WAITING + 20_501)


@contextmanager
def large() -> Iterator[None]:
    """Fill the tables, and empty them at the end."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL synchronous_commit = off")
        cursor.execute(EMPTY)
        cursor.execute(FILL)
    yield
    with connection.cursor() as cursor:
        cursor.execute(EMPTY)
