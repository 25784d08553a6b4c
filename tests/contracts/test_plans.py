"""The hot statements cost what they touch, whatever waits: their plans, with a million calls in the table.

Each is planned in both ways that PostgreSQL may choose for a prepared statement, and run; what it changed is
rolled back. Buffers are counted, not time.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from dispatcher import sql
from dispatcher.policy import BUCKETS
from dispatcher.states import TERMINAL
from dispatcher.web.ojs import stories
from dispatcher.web.ojs.stories import Asked
from dispatcher.web.ojs.views import letters

WAITING = 1_000_000
NOW = datetime(2030, 1, 1, tzinfo=UTC)
TABLES = {"dispatcher_callqueue", "dispatcher_lane", "dispatcher_ratelimitkey"}

# Lanes: 1 has most of the backlog; 2 to 1,001 have a hundred calls each; the next 10,000 are parked on key 1; the next
# 10,000 are held by two queues, one served and one not; 90,000 sleep. Calls: a million waits, 20,000 wait for their
# time, 1,000 are in flight, 50,000 have ended.
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
       (id, name, host, pid, pool, processes, queues, started_at, seen_at, serves_until)
SELECT gen_random_uuid(), 'celery@' || n, 'host', n, 'prefork', 8,
       ARRAY[CASE WHEN n = 1 THEN 'served' ELSE 'other' END], timestamptz '2029-12-31', timestamptz '2030-01-01',
       timestamptz '2040-01-01'
  FROM generate_series(1, 50) AS n;

INSERT INTO dispatcher_lane (id, queue, priority, on_limit, key_ids) VALUES (1000000, 'lone', 0, 'wait', ARRAY[5000]);

INSERT INTO dispatcher_callqueue
       (id, lane_id, task, args, kwargs, meta, queue, priority, on_limit, costs, state, attempt, errors,
        scheduled_at, expires_at, ticket, dispatched_at, published_at, started_at, finished_at)
SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid,
       CASE WHEN n <= 900000 THEN 1 ELSE 2 + n % 1000 END,
       'noop', '[]', '{}', '{}', 'queue', 0, 'wait', '{}', state, 0, '[]',
       CASE WHEN state IN ('scheduled', 'retryable')
            THEN timestamptz '2030-01-01' + (n % 10000 - 700) * interval '1 second' END,
       CASE WHEN n % 10000 = 0 THEN timestamptz '2030-01-01' + (n - 20000) * interval '1 second' END,
       CASE WHEN state IN ('dispatched', 'active') THEN gen_random_uuid() END,
       CASE WHEN state IN ('dispatched', 'active') THEN timestamptz '2029-12-31' END,
       CASE WHEN state = 'active' THEN timestamptz '2029-12-31' END,
       CASE WHEN state = 'active' THEN timestamptz '2029-12-31' END,
       CASE WHEN state = 'completed' THEN timestamptz '2029-12-01' + n % 10000 * interval '5 minutes' END
  FROM (SELECT n, CASE WHEN n <= 1000000 THEN 'available'
                       WHEN n <= 1010000 THEN 'scheduled'
                       WHEN n <= 1020000 THEN 'retryable'
                       WHEN n <= 1020500 THEN 'dispatched'
                       WHEN n <= 1021000 THEN 'active'
                       ELSE 'completed' END AS state
          FROM generate_series(1, 1071000) AS n) AS numbered;

INSERT INTO dispatcher_slot (call_id, key_id, cost, lease_until)
SELECT id, 1 + row_number() OVER () % 10000, 1, '2030-01-01'
  FROM dispatcher_callqueue
 WHERE state IN ('dispatched', 'active');

INSERT INTO dispatcher_window (key_id, place, cost, last_start_at)
SELECT key, part, 1,
       timestamptz '2029-12-31' + part * interval '1 second'
  FROM generate_series(1, 1000) AS key, generate_series(1, 100) AS part;

ANALYZE dispatcher_worker, dispatcher_ratelimitkey, dispatcher_lane, dispatcher_callqueue, dispatcher_slot,
        dispatcher_window;
"""
EMPTY = """
TRUNCATE dispatcher_callqueue, dispatcher_lane, dispatcher_ratelimitkey, dispatcher_slot, dispatcher_window,
         dispatcher_worker
"""


def call_id(number: int) -> UUID:
    return UUID(f"00000000-0000-7000-8000-{number:012x}")


@pytest.fixture(scope="module", autouse=True)
def _million(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Fill the tables, and empty them again."""
    with django_db_blocker.unblock():
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET LOCAL synchronous_commit = off")
            cursor.execute(EMPTY)
            cursor.execute(FILL)
        yield
        with connection.cursor() as cursor:
            cursor.execute(EMPTY)


@dataclass(frozen=True)
class Hot:
    """A statement as the engine runs it, and the most buffers that it may touch."""

    name: str
    params: Mapping[str, Any]
    most: int
    is_tuned: bool = False
    """It runs in a transaction of the engine's own, after `tune`."""

    def __str__(self) -> str:
        return self.name


MARGIN = timedelta(milliseconds=50)
LEASE = timedelta(seconds=60)
IN_FLIGHT = call_id(WAITING + 20_001)
RUNNING = call_id(WAITING + 20_501)
A_LANE = list(range(2, 102))
GATE = {"is_gated": True, "is_pull": False, "ahead": 1_000, "now": NOW}
NOTHING: dict[str, Any] = {"lanes": [], "keys": [], "queues": [], "awake": False, "most": 100, "slack": 16_000, **GATE}
A_CALL = {"calls": [RUNNING], "tickets": [uuid4()]}
A_WORKER = {
    "worker": uuid4(),
    "name": "celery@here",
    "host": "here",
    "pid": 1,
    "pool": "prefork",
    "processes": 8,
    "queues": ["served"],
    "lease": LEASE,
    "serves": LEASE,
    "now": NOW,
}
SEND = {
    "id": UUID(int=1),
    "names": ["key:5000"],
    "queue": "lone",
    "priority": 0,
    "on_limit": "wait",
    "task": "noop",
    "args": "[]",
    "kwargs": "{}",
    "call_data": None,
    "meta": "{}",
    "retry": None,
    "margin": MARGIN,
    "ramp": LEASE,
    "lease": LEASE,
    "is_gated": True,
    "ahead": 968,
}
FINISH = {
    "call": RUNNING,
    "state": "completed",
    "reason": None,
    "crashes": 0,
    "result": None,
    "error": None,
    "retry_in": None,
    "terminal": [str(state) for state in TERMINAL],
    "buckets": BUCKETS,
    "margin": MARGIN,
    "now": NOW,
}
PROGRESS = {"progress": 0.5, "message": None, "content": None}
CLAIM = {
    "claim": uuid4(),
    "worker": uuid4(),
    "lease": LEASE,
    "lead": MARGIN,
    "buckets": BUCKETS,
    "margin": MARGIN,
    "is_late": False,
    "slack": MARGIN,
    "is_durable": True,
    "now": NOW,
}

AUDIT = {
    **GATE,
    "most": 1_000,
    "slack": MARGIN,
    "margin": MARGIN,
    "late": MARGIN,
    "overdue": LEASE,
    "long": LEASE,
    "passed_after": None,
}

HOT = [
    # A pass: what it costs is the lanes that it takes and the calls at their heads.
    Hot("lock_lanes", NOTHING | {"awake": True}, 5_000, is_tuned=True),
    Hot("lock_lanes", NOTHING | {"keys": [1]}, 4_000, is_tuned=True),
    Hot("lock_lanes", NOTHING | {"lanes": [1]}, 200, is_tuned=True),
    Hot("lock_lanes", NOTHING | {"lanes": [11_003]}, 200, is_tuned=True),
    Hot("lock_lanes", NOTHING | {"queues": ["served"]}, 4_000, is_tuned=True),
    Hot("look_queues", {"lanes": A_LANE, **GATE}, 800, is_tuned=True),
    Hot("look_lanes", {"lanes": [11_002], "heads": 501, "now": NOW}, 500, is_tuned=True),
    Hot("look_keys", {"keys": list(range(1001, 1201)), "now": NOW, "margin": MARGIN}, 4_000, is_tuned=True),
    Hot("look_keys", {"keys": list(range(1, 21)), "now": NOW, "margin": MARGIN}, 3_000, is_tuned=True),
    Hot("look_lanes", {"lanes": [1], "heads": 501, "now": NOW}, 2_500, is_tuned=True),
    Hot("look_lanes", {"lanes": A_LANE, "heads": 6, "now": NOW}, 4_000, is_tuned=True),
    Hot(
        "look_again",
        {
            "asleep": A_LANE,
            "full": [1, 2],
            "held": [1, 1],
            "roomy": [1, 2],
            "filled": ["served"],
            "ahead": 1_000,
            "now": NOW,
        },
        1_500,
    ),
    Hot("openable_keys", {"keys": [1, 2], "lane": 11_002, "ahead": 1_000, "now": NOW}, 150),
    Hot("unparked_lanes", {"lanes": A_LANE}, 500),
    Hot("wake_lanes", {"lanes": A_LANE}, 3_000),
    Hot("close_openings", {"keys": [1, 9_999]}, 200, is_tuned=True),
    # What time brings. Without a time given, as the engine asks, nothing is due yet.
    Hot("wake_due", {"now": None, "most": 500}, 20),
    Hot("wake_due", {"now": NOW, "most": 500}, 20_000),
    Hot("discard_expired", {"now": None, "most": 500}, 20),
    Hot("discard_expired", {"now": NOW, "most": 500}, 2_000),
    Hot("due_keys", {"now": None, "most": 100}, 20),
    Hot("due_keys", {"now": NOW, "most": 100}, 50),
    Hot("due_queues", {**GATE, "most": 100}, 100),
    Hot("end_overrides", {"name": None, "now": None}, 20),
    Hot("next_due", {"now": None}, 50),
    Hot(
        "unpublished_calls",
        {"now": None, "after": MARGIN, "resting": [], "most": 500, "lease": LEASE, "settle": LEASE},
        20,
    ),
    Hot(
        "unpublished_calls",
        {"now": NOW, "after": MARGIN, "resting": [], "most": 500, "lease": LEASE, "settle": LEASE},
        10_000,
    ),
    Hot("sweep_lanes", {"after": 0, "most": 1_000}, 12_000),
    Hot("sweep_keys", {"after": 0, "most": 1_000}, 500),
    Hot("lock_expired", {"now": NOW + LEASE, "most": 500, "slack": LEASE}, 12_000),
    Hot("lock_unserved", {"now": NOW, "most": 500, "grace": LEASE}, 10_000),
    # One call.
    Hot("send_call", SEND, 200),
    Hot("claim_call", {"call": IN_FLIGHT, "ticket": uuid4(), **CLAIM}, 50),
    Hot("finish_call", {"ticket": uuid4(), **FINISH}, 50),
    Hot("lock_calls", {"calls": [call_id(5)]}, 50),
    Hot("cancel_calls", {"calls": [call_id(5)], "now": NOW}, 100, is_tuned=True),
    Hot("retry_calls", {"calls": [call_id(WAITING + 30_000)]}, 100),
    Hot("run_calls_now", {"calls": [call_id(500_000)]}, 100),
    # One worker.
    Hot("beat", {**A_WORKER, **A_CALL}, 150),
    Hot("held_calls", {"worker": uuid4()}, 100),
    # One key.
    Hot("find_keys", {"names": ["key:7", "key:9999"]}, 50),
    Hot("block_keys", {"keys": [5], "names": ["key:7"], "wait": LEASE, "now": NOW}, 100),
    Hot("pause_key", {"name": "key:7", "is_paused": True}, 50),
    # Over HTTP.
    Hot("ready_queues", {"queues": ["served", "unheard"]}, 100),
    Hot("lock_lanes", NOTHING | {"queues": ["served"], "is_pull": True}, 4_000, is_tuned=True),
    Hot("hold_pulled", {"calls": [RUNNING], "lease": None, "usual": LEASE, "worker": None, "now": NOW}, 100),
    Hot("beat_pulled", {"calls": [RUNNING], "lease": None, "usual": LEASE, "worker": uuid4(), "now": NOW}, 100),
    Hot("lock_overdue", {"now": NOW, "most": 500}, 50),
    Hot("find_unique", {"unique_key": "x", "states": ["available"], "period": None}, 20),
    Hot("note_progress", {"call": RUNNING, "ticket": uuid4(), "worker": uuid4(), **PROGRESS}, 60),
    Hot("activate_calls", {"calls": [call_id(5)]}, 50),
    Hot("queue_bounds", {"names": ["served"], "is_lock": True}, 20),
    # The retention.
    Hot("delete_ended", {"state": "completed", "retention": timedelta(days=7), "most": 1_000, "now": NOW}, 40_000),
    Hot("delete_ended", {"state": "completed", "retention": timedelta(days=7), "most": 1_000, "now": None}, 20),
    Hot("delete_ended", {"state": "discarded", "retention": timedelta(days=7), "most": 1_000, "now": NOW}, 20),
    # The audit: it costs the slots, the lanes that have calls and the keys with parked lanes; by one look each.
    Hot("audit_over_concurrency", AUDIT, 4_500, is_tuned=True),
    Hot("audit_over_rate", AUDIT, 4_500, is_tuned=True),
    Hot("audit_over_throttle", AUDIT, 100, is_tuned=True),
    Hot("audit_two_tickets", AUDIT, 100, is_tuned=True),
    Hot("audit_lease_unrecovered", AUDIT, 200, is_tuned=True),
    Hot("audit_slot_without_call", AUDIT, 6_000, is_tuned=True),
    Hot("audit_call_without_slot", AUDIT, 200, is_tuned=True),
    Hot("audit_wrong_slots", AUDIT, 16_000, is_tuned=True),
    Hot("audit_order", AUDIT, 6_000, is_tuned=True),
    Hot("audit_unserved_asleep", AUDIT, 15_000, is_tuned=True),
    Hot("audit_unserved_parked", AUDIT, 50, is_tuned=True),
    Hot("audit_unserved_held", AUDIT, 100, is_tuned=True),
    Hot("audit_unserved_awake", AUDIT, 1_500, is_tuned=True),
    Hot("audit_unserved_due", AUDIT, 200, is_tuned=True),
    Hot("audit_queue_unserved", AUDIT, 50, is_tuned=True),
    Hot("audit_poison", AUDIT, 20, is_tuned=True),
]


def explain(hot: Hot, mode: str) -> dict[str, Any]:
    """Run a statement, and return its plan; what it changed is rolled back."""
    order: dict[str, int] = {}
    text = re.sub(
        r"%\((\w+)\)s", lambda found: f"${order.setdefault(found[1], len(order) + 1)}", sql.statement(hot.name)
    )
    values = [hot.params[name] for name in order]
    with transaction.atomic(), connection.cursor() as cursor:
        if hot.is_tuned:
            cursor.execute(sql.statement("tune"))
        else:
            cursor.execute(f"SET LOCAL plan_cache_mode = {mode}")
        cursor.execute(f"PREPARE tried AS {text.replace('%%', '%')}")
        try:
            places = ", ".join(["%s"] * len(values))
            cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE tried({places})", values)
            (answer,) = cursor.fetchone()
        finally:
            transaction.set_rollback(True)
    with connection.cursor() as cursor:
        cursor.execute("DEALLOCATE ALL")
    plan: dict[str, Any] = (json.loads(answer) if isinstance(answer, str) else answer)[0]["Plan"]
    return plan


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", []):
        yield from nodes(part)


def outline(plan: dict[str, Any], depth: int = 0) -> str:
    """Write a plan for people: what reads what, how often, and the buffers."""
    shown = [plan["Node Type"], plan.get("Relation Name", ""), plan.get("Index Name", "")]
    cost = f"rows {plan.get('Actual Rows')} x {plan.get('Actual Loops')}, buffers {buffers(plan)}"
    lines = [f"{'  ' * depth}{' '.join(filter(None, shown))}: {cost}"]
    return "\n".join(lines + [outline(part, depth + 1) for part in plan.get("Plans", [])])


def buffers(plan: dict[str, Any]) -> int:
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


@pytest.mark.django_db(transaction=False)
@pytest.mark.parametrize(
    ("hot", "mode"),
    # The engine plans those of a pass in one way only.
    [(hot, "force_generic_plan") for hot in HOT] + [(hot, "force_custom_plan") for hot in HOT if not hot.is_tuned],
    ids=str,
)
def test_a_hot_statement_reads_only_what_it_touches(hot: Hot, mode: str) -> None:
    plan = explain(hot, mode)
    read_whole = {node.get("Relation Name") for node in nodes(plan) if node["Node Type"] == "Seq Scan"}
    assert not read_whole & TABLES, outline(plan)
    assert buffers(plan) <= hot.most, outline(plan)


LOOKS: dict[str, Callable[[], object]] = {
    "what happened since": lambda: stories.after(Asked(), stories.now(), 100),
    "the latest": lambda: stories.latest(Asked(), 100),
    "the latest of some jobs": lambda: stories.latest(Asked(queues=["queue"], job_types=["rare"]), 100),
    "what happened to one job": lambda: stories.after(Asked(job=RUNNING), "", 100),
    "the dead letters": letters.counted,
}


@pytest.mark.django_db(transaction=False)
@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_a_look_at_what_happened_reads_no_table_whole(look: Callable[[], object]) -> None:
    with CaptureQueriesContext(connection) as asked, connection.cursor() as cursor:
        look()
        reads = [query["sql"] for query in asked.captured_queries if '"dispatcher_callqueue"' in query["sql"]]
        assert reads
        for read in reads:
            cursor.execute(f"EXPLAIN (FORMAT JSON) {read[read.index('SELECT') :]}")
            plan = cursor.fetchone()[0][0]["Plan"]
            read_whole = {node.get("Relation Name") for node in nodes(plan) if node["Node Type"] == "Seq Scan"}
            assert not read_whole & TABLES, read


@pytest.mark.django_db(transaction=False)
def test_a_claim_and_a_finish_touch_a_handful_of_rows() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT ticket FROM dispatcher_callqueue WHERE id = %s", [IN_FLIGHT])
        (ticket,) = cursor.fetchone()
        cursor.execute("SELECT ticket FROM dispatcher_callqueue WHERE id = %s", [RUNNING])
        (running,) = cursor.fetchone()
    claimed = Hot("claim_call", {"call": IN_FLIGHT, "ticket": ticket, **CLAIM}, 200)
    finished = Hot("finish_call", {"ticket": running, **FINISH}, 200)
    for hot in (claimed, finished):
        plan = explain(hot, "force_generic_plan")
        assert buffers(plan) <= hot.most, outline(plan)
        assert any(node.get("Operation") == "Update" and node["Actual Rows"] for node in nodes(plan)), outline(plan)


@pytest.mark.django_db(transaction=False)
def test_the_plans_would_show_a_table_that_is_read_whole() -> None:
    """The tests above can fail: without its index, a statement reads everything."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("DROP INDEX call_due")
        plan = explain(Hot("next_due", {"now": NOW}, 50), "force_custom_plan")
        transaction.set_rollback(True)
    assert any(node["Node Type"] == "Seq Scan" for node in nodes(plan))
    assert buffers(plan) > 50
