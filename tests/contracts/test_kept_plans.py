"""A plan that was made while the tables were empty, and is kept while they fill up, reads what it touches all the same.

PostgreSQL plans a kept statement again only after the next ANALYZE, which autovacuum starts once a minute.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

import pytest
from django.db import connection
from psycopg.pq import ExecStatus

from tests.contracts.large import EMPTY, RUNNING
from tests.contracts.plans import (
    FEED,
    ORDERED,
    PASS,
    Hot,
    buffers,
    chosen,
    ends,
    explain,
    explained,
    hot,
    nodes,
    outline,
    prepare,
    rows_read,
)

pytestmark = [pytest.mark.server, pytest.mark.django_db(transaction=False)]

KEYS: Final = 5_000
# 20,000 calls wait, 2,000 are admitted, 2,000 run.
FILL: Final = """
SELECT setval(pg_get_serial_sequence(name, 'id'), 10000)
  FROM unnest(ARRAY['dispatcher_lane', 'dispatcher_ratelimitkey']) AS serial (name);

INSERT INTO dispatcher_ratelimitkey (id, name, concurrency, is_paused)
SELECT n, 'key:' || n, 1, false FROM generate_series(1, 5000) AS n;

INSERT INTO dispatcher_queue (name, delivery, on_full, warn_at) VALUES ('direct', 'direct', 'reject', 0.8);

INSERT INTO dispatcher_lane (id, queue, priority, on_limit, key_ids, is_held, is_awake, parked_on_id)
SELECT n, 'direct', 0, 'wait', ARRAY[n], n % 3 = 0, n % 3 = 1, CASE WHEN n % 3 = 2 THEN n END
  FROM generate_series(1, 5000) AS n;

INSERT INTO dispatcher_callqueue
       (id, lane_id, task, args, kwargs, meta, queue, priority, on_limit, costs, state, attempt, errors, ticket, claim,
        dispatched_at, published_at, started_at)
SELECT gen_random_uuid(), 1 + n % 5000, 'noop', '[]', '{}', '{}', 'direct', 0, 'wait', '{}',
       CASE WHEN n <= 20000 THEN 'available' WHEN n % 2 = 0 THEN 'dispatched' ELSE 'active' END, 0, '[]',
       CASE WHEN n > 20000 THEN gen_random_uuid() END, CASE WHEN n > 20000 AND n % 2 = 1 THEN gen_random_uuid() END,
       CASE WHEN n > 20000 THEN now() END, CASE WHEN n > 20000 THEN now() END,
       CASE WHEN n > 20000 AND n % 2 = 1 THEN now() END
  FROM generate_series(1, 24000) AS n;

INSERT INTO dispatcher_slot (call_id, key_id, cost, lease_until)
SELECT id, 1 + row_number() OVER () % 5000, 1, now() + interval '1 minute'
  FROM dispatcher_callqueue
 WHERE state IN ('dispatched', 'active');
"""
SLOTS: Final = """
INSERT INTO dispatcher_slot (call_id, key_id, cost, lease_until)
SELECT gen_random_uuid(), 1 + n % 5000, 1, now() FROM generate_series(1, 20000) AS n
"""
ANALYZE: Final = """
ANALYZE dispatcher_ratelimitkey, dispatcher_lane, dispatcher_callqueue, dispatcher_slot, dispatcher_window
"""

END: Final = {**ends(RUNNING), "queues": ["direct"], "most": 4}
SHARES: Final = '[{"queue": "direct", "due": 1, "stride": 2}]'
CHOSEN: Final = chosen("{1,2,3,4}", "{1,2,3,4}")
SOME: Final = list(range(1, 501))
ONE: Final = 500
"""The most rows that a part of a plan reads for a call or a few."""
STATEMENTS: Final = [
    hot("lock_released", ONE, PASS, call=RUNNING),
    hot("admit_released", ONE, (*PASS, chosen("{2}", "{2}"))),
    hot("start_calls", ONE, PASS, calls=[RUNNING], claims=[RUNNING]),
    hot("finish_calls", ONE, PASS, **END),
    *(
        each
        for before in (PASS, FEED)
        for each in (
            hot("finish_and_choose", ONE, before, **END),
            hot("finish_and_choose", ONE, before, **END | {"queues": ["lone", "direct"]}, keys=[1, 2]),
            hot("finish_and_choose_by_weight", ONE, before, **END, shares=SHARES),
            hot("start_chosen", ONE, (*before, CHOSEN)),
            hot("start_chosen_by_weight", ONE, (*before, CHOSEN), shares=SHARES),
            hot("hand_over_slots", ONE, before, **END),
        )
    ),
]
COUNTS: Final = [
    hot("count_key_usage", 20_000, ORDERED, keys=SOME, margin=timedelta(0), worker=None),
    hot("recheck", 20_000, ORDERED, full=SOME, held=[1] * 500),
    hot("sweep_keys", 20_000, ORDERED),
]


@contextmanager
def undone() -> Iterator[None]:
    """Take back what is changed inside; past psycopg, which would deallocate the kept plans at a rollback."""
    server = connection.connection.pgconn
    server.exec_(b"SAVEPOINT before")
    yield
    assert server.exec_(b"ROLLBACK TO SAVEPOINT before").status == ExecStatus.COMMAND_OK


def wasteful(statements: Sequence[Hot], then: str) -> list[str]:
    """Plan statements, change the tables, and return the plans of those of which a part reads too many rows."""
    runs = [prepare(tried, f"kept_{number}") for number, tried in enumerate(statements)]
    offenders = []
    with connection.cursor() as cursor:
        for is_full in (False, True):
            for tried, run in zip(statements, runs, strict=True):
                with undone():
                    for text in tried.before:
                        cursor.execute(text)
                    plan = explained(run, tried.values())
                if is_full and (max(map(rows_read, nodes(plan))) > tried.most or buffers(plan) > 10_000):
                    offenders.append(f"{tried} reads too much:\n{outline(plan)}")
            if not is_full:
                cursor.execute(then)
        cursor.execute("DEALLOCATE ALL")
    return offenders


def run(*texts: str) -> None:
    """Run statements."""
    with connection.cursor() as cursor:
        for text in texts:
            cursor.execute(text)


def test_a_plan_kept_from_empty_tables_reads_what_it_touches() -> None:
    run(EMPTY)
    assert wasteful(STATEMENTS, FILL) == []


def test_slots_are_counted_by_their_keys_after_a_plan_that_was_made_while_there_were_none() -> None:
    """Two indexes have the key: in one of them it comes second, and each key would cost a read of it all."""
    run(
        EMPTY,
        FILL,
        "UPDATE dispatcher_lane SET parked_on_id = id, is_awake = false, is_held = false",
        "TRUNCATE dispatcher_slot",
        ANALYZE,
    )
    assert wasteful(COUNTS, SLOTS) == []


def test_a_report_of_all_keys_reads_nothing_once_for_each_of_them() -> None:
    run(EMPTY, ANALYZE, FILL)
    plan = explain(hot("report_keys", 0, names=None, margin=timedelta(0)))
    assert plan["Actual Rows"] == KEYS
    scans = [node for node in nodes(plan) if node.get("CTE Name") != "clock"]
    assert max(node["Actual Rows"] * node["Actual Loops"] for node in scans) < 10 * KEYS, outline(plan)
