"""A large system as pages and lists find it: whatever is rare is behind 100,000 calls that have ended.

Rows are counted, not time: those that each part of a plan reads, and those that it reads and leaves out.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from dispatcher import sql
from tests.contracts.plans import ALONE, Hot, explain, explained, nodes, outline, rows_read

MOST: Final = 25_000
"""The most rows that one part of a plan may read: a bounded count, or the lanes."""

# Calls, from the oldest to the newest: 20,000 wait in 10,000 lanes, 40,000 are due at one instant, 5 are retryable, 5
# pending, 100 in flight, 50 discarded; 100,000 have ended well, in 24 queues: whatever is rare is behind all of these.
FILL: Final = """
INSERT INTO dispatcher_ratelimitkey (id, name, concurrency, is_paused)
SELECT n, 'key:' || n, 1, false FROM generate_series(1, 10000) AS n;

INSERT INTO dispatcher_queue (name, delivery, max_depth, on_full, warn_at)
SELECT 'queue-' || n, 'http', 1000000, 'reject', 0.8 FROM generate_series(1, 24) AS n;

INSERT INTO dispatcher_lane (id, queue, priority, on_limit, key_ids)
SELECT n, 'queue-' || 1 + n % 24, 0, 'wait', ARRAY[1, 1 + n] FROM generate_series(1, 12000) AS n;

UPDATE dispatcher_lanesite SET place = 1 WHERE lane_id <= 10000;

INSERT INTO dispatcher_callqueue
       (id, lane_id, task, args, kwargs, meta, queue, priority, on_limit, costs, state, attempt, errors, reason, retry,
        scheduled_at, ticket, dispatched_at, started_at, finished_at, error)
SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 1 + n % 10000,
       CASE WHEN n % 100000 = 7 THEN 'rare' ELSE 'noop' END, '[]', '{}', '{}',
       CASE WHEN state = 'scheduled' THEN 'queue-1' ELSE 'queue-' || 1 + (1 + n % 10000) % 24 END, 0, 'wait',
       '{}', state, 0, '[]',
       CASE WHEN state = 'discarded' THEN CASE WHEN n % 2 = 0 THEN 'failed' ELSE 'poison' END END,
       CASE WHEN state = 'discarded' THEN '{"on_exhaustion": "dead_letter"}'::jsonb END,
       CASE WHEN state IN ('scheduled', 'retryable') THEN timestamptz '2040-01-01' END,
       CASE WHEN state = 'active' THEN gen_random_uuid() END,
       CASE WHEN state = 'active' THEN now() END, CASE WHEN state IN ('active', 'completed') THEN now() END,
       CASE WHEN state IN ('completed', 'discarded') THEN now() - (400000 - n) * interval '1 millisecond' END,
       CASE WHEN state = 'retryable' THEN '{"type": "E"}'::jsonb END
  FROM (SELECT n, CASE WHEN n <= 20000 THEN 'available'
                       WHEN n <= 60000 THEN 'scheduled'
                       WHEN n <= 60005 THEN 'retryable'
                       WHEN n <= 60010 THEN 'pending'
                       WHEN n <= 60110 THEN 'active'
                       WHEN n <= 60160 THEN 'discarded'
                       ELSE 'completed' END AS state
          FROM generate_series(1, 160160) AS n) AS numbered;

INSERT INTO dispatcher_slot (call_id, key_id, cost, lease_until, worker_id, pulled_until)
SELECT id, 1, 1, now() + interval '1 hour', gen_random_uuid(), now() + interval '1 hour'
  FROM dispatcher_callqueue WHERE state = 'active'
"""
TABLES: Final = ", ".join(
    f"dispatcher_{name}" for name in ("callqueue", "lane", "lanesite", "ratelimitkey", "slot", "note", "queue")
)


@contextmanager
def full(fill: str = "", *tables: str) -> Iterator[None]:
    """Fill the tables, and these others by a statement of their own; empty them at the end."""
    names = ", ".join([TABLES, *tables])
    with connection.cursor() as cursor:
        with transaction.atomic():
            cursor.execute("SET LOCAL synchronous_commit = off")
            cursor.execute(f"TRUNCATE {names} CASCADE")
            cursor.execute(FILL)
            if fill:
                cursor.execute(fill)
        cursor.execute(f"VACUUM ANALYZE {names}")
        yield
        cursor.execute(f"TRUNCATE {names} CASCADE")


def plans(look: Callable[[], object]) -> list[dict[str, Any]]:
    """Return the plans of all statements on the dispatcher's tables that a look asks."""
    named: list[Hot] = []
    ask = sql.ask

    def note(name: str, row: type[Any], params: Any) -> Any:
        named.append(Hot(name, 0, ALONE, params))
        return ask(name, row, params)

    with pytest.MonkeyPatch.context() as patch, CaptureQueriesContext(connection) as asked:
        patch.setattr(sql, "ask", note)
        look()
    found = [query["sql"] for query in asked.captured_queries]
    return [explain(hot) for hot in named] + [
        explained(query) for query in found if query.startswith("SELECT") and '"dispatcher_' in query
    ]


def too_much(look: Callable[[], object], most: int = MOST) -> list[str]:
    """Return the plans of a look of which a part reads more rows than that."""
    found = plans(look)
    assert found, "it reads nothing"
    return [outline(plan) for plan in found if max(map(rows_read, nodes(plan))) > most]
