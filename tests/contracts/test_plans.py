"""The hot statements cost what they touch, whatever waits: their plans, with a million calls in the table.

Each is planned in both ways that PostgreSQL may choose for a prepared statement, and run; what it changed is
rolled back. Buffers are counted, not time.
"""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from dispatcher import sql
from dispatcher.limits.policy import BUCKETS
from dispatcher.models import Queue
from dispatcher.ojs.enqueue import Bound
from dispatcher.ojs.events import query
from dispatcher.ojs.events.query import EventFilter
from dispatcher.ojs.views import dead_letters
from dispatcher.states import TERMINAL
from tests.contracts.plans import Hot, buffers, explain, nodes, outline

pytestmark = pytest.mark.server

WAITING = 1_000_000
NOW = datetime(2030, 1, 1, tzinfo=UTC)
TABLES = {"dispatcher_callqueue", "dispatcher_lane", "dispatcher_ratelimitkey"}

# Lanes: 1 has most of the backlog; 2 to 1,001 have a hundred calls each; the next 10,000 are parked on key 1; the next
# 10,000 are held by two queues, one served and one not; 90,000 sleep; 10,000 more are held by a direct queue, and 1,000
# by one that workers fetch from. Calls: a million waits, 20,000 wait for their time, 1,000 are in flight, 50,000 have
# ended.
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
        scheduled_at, expires_at, ticket, dispatched_at, published_at, started_at, finished_at)
SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid,
       CASE WHEN n <= 900000 THEN 1 WHEN n BETWEEN 999991 AND 1000000 THEN n - 799990 ELSE 2 + n % 1000 END,
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
         dispatcher_worker, dispatcher_queue, dispatcher_feed
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


MARGIN = timedelta(milliseconds=50)
LEASE = timedelta(seconds=60)
IN_FLIGHT = call_id(WAITING + 20_001)
RUNNING = call_id(WAITING + 20_501)
A_LANE = list(range(2, 102))
CAME = {"call": None, "waiting": "available"}
GATE = {"needs_worker": True, "deliveries": ["broker"], "ahead": 1_000, "now": NOW}
HTTP = {"deliveries": ["http"], "needs_worker": False}
NOTHING: dict[str, Any] = {
    "lanes": [],
    "keys": [],
    "queues": [],
    "awake": False,
    "most": 100,
    "slack": 16_000,
    "avoid": [],
    "wait_for": None,
    **GATE,
}
A_CALL = {"calls": [RUNNING], "tickets": [uuid4()]}
A_WORKER = {
    "worker": uuid4(),
    "name": "celery@here",
    "host": "here",
    "pid": 1,
    "pool": "prefork",
    "processes": 8,
    "queues": ["served"],
    "deliveries": ["broker"],
    "tasks": ["noop"],
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
    "headers": None,
    "options": None,
    "retry": None,
    "margin": MARGIN,
    "ramp": LEASE,
    "lease": LEASE,
    "needs_worker": True,
    "ahead": 968,
}
KINDS = json.dumps(
    [
        {"number": n, "queue": "lone", "priority": 0, "on_limit": "wait", "names": [f"key:{5000 - n}"], "placement": {}}
        for n in range(2)
    ]
)
SEND_MANY = {
    "kinds": KINDS,
    "may_defer": True,
    "is_eager": False,
    "now": NOW,
    "ids": [UUID(int=number) for number in (1, 2)],
    "kind_of": [0, 1],
    **{column: ["noop" if column == "task" else "{}"] * 2 for column in ("task", "args", "kwargs", "meta", "costs")},
    **{
        column: [None, None]
        for column in ("call_data", "retry", "scheduled_at", "expires_at", "timeout", "visibility", "unique_key")
    },
    **{column: [None, None] for column in ("envelope", "headers", "options", "scheduled_in", "expires_in")},
    "is_pending": [False, False],
}
FINISH = {
    "call": RUNNING,
    "claim": None,
    "is_by_claim": True,
    "state": "completed",
    "reason": None,
    "crashes": 0,
    "result": None,
    "error": None,
    "retry_in": None,
    "terminal": [str(state) for state in TERMINAL],
    "now": NOW,
}
RESTORE = {"claim": None, "buckets": BUCKETS, "margin": MARGIN, "now": NOW}
PROGRESS = {"progress": 0.5, "message": None, "content": None}
AMEND = {
    "args": "[]",
    "kwargs": None,
    "queue": None,
    "priority": None,
    "expires_at": None,
    "expires_in": None,
    "now": NOW,
}
UNSTARTED = {
    "is_unknown": True,
    "is_lost": False,
    "claim": None,
    "free": 2,
    "soon": LEASE,
    "first": LEASE,
    "longest": LEASE,
    "now": NOW,
}
CLAIM = {
    "lock_wait": 1_000,
    "claim": uuid4(),
    "worker": uuid4(),
    "lease": LEASE,
    "lead": MARGIN,
    "ahead": LEASE,
    "buckets": BUCKETS,
    "margin": MARGIN,
    "slack": MARGIN,
    "missed": MARGIN,
    "is_durable": True,
    "now": NOW,
}
UNUSED = {"unused": timedelta(days=30), "now": NOW}

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

ENDS = {
    "calls": [RUNNING],
    "tickets": [uuid4()],
    "claims": [uuid4()],
    "states": ["completed"],
    "reasons": [None],
    "crashes": [0],
    "results": ["1"],
    "errors": [None],
    "waits": [None],
    "terminal": ["completed"],
    "now": None,
}
WEIGHTED = {"shares": json.dumps([{"queue": name, "due": 1, "stride": 2} for name in ("lone", "direct", "queue")])}
CHOOSE = ENDS | {"queues": ["direct"], "keys": [], "avoid": [], "most": 4}
START_ONE = {"lease": LEASE, "margin": MARGIN, "buckets": 60, "slack": MARGIN, "now": None}
TAKER = {"worker": uuid4(), "tasks": ["noop"], "usual": None, "is_fetch": False}
HAND_OVER = ENDS | {"queues": ["direct"], "waiting": "available", "ramp": LEASE, **TAKER, "lease": LEASE}
FETCHER = {"worker": None, "tasks": None, "usual": LEASE, "is_fetch": True}
START = {"room": 2, "avoid": [], "ramp": LEASE, "may_park": True, "waiting": "available", **START_ONE, **TAKER}
ROOM: dict[str, Any] = {"keys": [], "lane": None, "call": None, "ahead": 1_000, "now": NOW}
ADMIT = {"ahead": 1_000, "needs_worker": False, "lease": LEASE, "margin": MARGIN, "ramp": LEASE, "waiting": "available"}
KEPT = {"send_call", "record_call", "wake_for_call", "claim_call", "restart_call", "finish_call"}
"""What every call runs outside of a transaction of the engine's own."""

HOT = [
    # A pass: what it costs is the lanes that it takes and the calls at their heads.
    Hot("lock_lanes", NOTHING | {"awake": True}, 5_000, is_tuned=True),
    Hot("lock_lanes", NOTHING | {"keys": [1]}, 4_000, is_tuned=True),
    Hot("lock_lanes", NOTHING | {"lanes": [1]}, 200, is_tuned=True),
    Hot("lock_lanes", NOTHING | {"keys": [1], "wait_for": 1}, 4_000, is_tuned=True),
    Hot("lock_lanes", NOTHING | {"awake": True, "avoid": [10_050]}, 5_000, is_tuned=True),
    Hot("lock_lanes", NOTHING | {"lanes": [11_003]}, 200, is_tuned=True),
    Hot("lock_lanes", NOTHING | {"queues": ["served"]}, 4_000, is_tuned=True),
    Hot("count_queue_usage", {"lanes": A_LANE, **GATE}, 800, is_tuned=True),
    Hot("read_lane_heads", {"lanes": [11_002], "heads": 501, "stuck": [], "now": NOW}, 500, is_tuned=True),
    Hot(
        "count_key_usage",
        {"keys": list(range(1001, 1201)), "now": NOW, "margin": MARGIN, "worker": None},
        6_000,
        is_tuned=True,
    ),
    Hot(
        "count_key_usage",
        {"keys": list(range(1, 21)), "now": NOW, "margin": MARGIN, "worker": None},
        3_000,
        is_tuned=True,
    ),
    Hot("read_lane_heads", {"lanes": A_LANE, "heads": 6, "stuck": [10_050], "now": NOW}, 4_000, is_tuned=True),
    Hot("read_lane_heads", {"lanes": [1], "heads": 501, "stuck": [], "now": NOW}, 2_500, is_tuned=True),
    Hot("read_lane_heads", {"lanes": A_LANE, "heads": 6, "stuck": [], "now": NOW}, 4_000, is_tuned=True),
    Hot(
        "recheck",
        {
            "asleep": A_LANE,
            "full": [1, 2],
            "held": [1, 1],
            "keys_with_room": [1, 2],
            "filled": ["served"],
            "ahead": 1_000,
            "now": NOW,
        },
        1_500,
    ),
    Hot("find_released_room", ROOM | {"keys": [1, 2], "lane": 11_002}, 150),
    Hot("find_released_room", ROOM | {"call": RUNNING}, 150),
    Hot("find_released_room", ROOM | {"call": RUNNING}, 150, is_tuned=True),
    Hot("changed_lanes", {"lanes": A_LANE, "positions": [1] * 100, **CAME}, 500, is_tuned=True),
    Hot("changed_lanes", {"lanes": list(range(1_002, 1_102)), "positions": [1] * 100, **CAME}, 1_000, is_tuned=True),
    Hot(
        "changed_lanes", {"lanes": [], "positions": [], "call": call_id(5), "waiting": "available"}, 100, is_tuned=True
    ),
    Hot("wake_lanes", {"lanes": A_LANE}, 3_000),
    Hot("defer_lanes", {"lanes": A_LANE}, 3_000),
    Hot("defer_lanes", {"lanes": [1_002]}, 50),
    Hot("defer_keys", {"keys": [1, 2], "now": NOW}, 100),
    Hot("clear_opening_times", {"keys": [1, 9_999]}, 200, is_tuned=True),
    # A finish that admits the next call.
    Hot("lock_released", {"call": RUNNING}, 100, is_tuned=True),
    Hot("admit_released", ADMIT, 300, is_tuned=True, settings={"dispatcher.chosen": "{1}", "dispatcher.locked": "{2}"}),
    Hot("admit_released", ADMIT, 20, is_tuned=True, settings={"dispatcher.chosen": "{}", "dispatcher.locked": "{}"}),
    # One step of a feed.
    Hot("finish_and_choose", CHOOSE, 400, is_tuned=True),
    Hot("finish_and_choose", CHOOSE | {"keys": [1, 2], "queues": ["lone", "direct", "queue"]}, 1_000, is_tuned=True),
    Hot("finish_and_choose_by_weight", CHOOSE | WEIGHTED, 400, is_tuned=True),
    *(
        Hot(
            name,
            START | more,
            500,
            is_tuned=True,
            settings={"dispatcher.chosen": "{1,2,3,1001}", "dispatcher.locked": "{2,3,4,1002}"},
        )
        for name, more in (("start_chosen", {}), ("start_chosen_by_weight", WEIGHTED))
    ),
    Hot("start_chosen", START, 20, is_tuned=True, settings={"dispatcher.chosen": "{}", "dispatcher.locked": "{}"}),
    Hot("hand_over_slots", HAND_OVER, 400, is_tuned=True),
    Hot("find_opened", {"keys": [1, 2], "queues": ["direct"], "avoid": [3], "now": None}, 150),
    Hot("finish_calls", ENDS, 100, is_tuned=True),
    Hot(
        "start_calls",
        {"calls": [IN_FLIGHT], "claims": [uuid4()], "worker": uuid4(), "admitted": "dispatched", **START_ONE},
        200,
        is_tuned=True,
    ),
    Hot("waiting_queues", {}, 50),
    Hot("has_lanes", {"queues": ["direct"], "reached": [1]}, 50, is_tuned=True),
    Hot("wake_feeds", {"queues": ["direct"], "silence": LEASE}, 200),
    # What time brings. Without a time given, as the engine asks, nothing is due yet.
    Hot("wake_due", {"queues": None, "now": None, "most": 500, "states": ["scheduled", "retryable"]}, 20),
    Hot("wake_due", {"queues": None, "now": NOW, "most": 500, "states": ["scheduled", "retryable"]}, 20_000),
    Hot("discard_expired", {"now": None, "most": 500, "states": ["scheduled", "retryable"]}, 20),
    Hot("discard_expired", {"now": NOW, "most": 500, "states": ["scheduled", "retryable"]}, 2_000),
    # Of a thousand calls in flight, those that are dispatched: the index holds what is published, too.
    Hot("find_due", {"now": None, "publish_after": LEASE}, 100, is_tuned=True),
    Hot("due_keys", {"now": None, "most": 100}, 20),
    Hot("due_keys", {"now": NOW, "most": 100}, 50),
    Hot("oversized_keys", {"keys": None, "after": 0, "most": 1_000, "now": None}, 20),
    Hot("oversized_keys", {"keys": [1, 2], "after": 0, "most": 1_000, "now": None}, 30),
    Hot("release_oversized", {"keys": [1, 2], "costs": [5, 5], "most": 10_000}, 30),
    Hot(
        "mark_oversized", {"calls": [call_id(5)], "keys": [1], "costs": [5], "waiting": "available"}, 100, is_tuned=True
    ),
    Hot("due_queues", {**GATE, "most": 100}, 100),
    Hot("end_overrides", {"now": None}, 20),
    Hot("next_due", {"now": None}, 50),
    Hot(
        "unpublished_calls",
        {"now": None, "after": MARGIN, "resting": [], "most": 500, "lease": LEASE, "after_restart": LEASE},
        20,
    ),
    Hot(
        "unpublished_calls",
        {"now": NOW, "after": MARGIN, "resting": [], "most": 500, "lease": LEASE, "after_restart": LEASE},
        10_000,
    ),
    Hot("sweep_lanes", {"after": 0, "most": 350}, 2_000, is_tuned=True),
    Hot("sweep_lanes", {"after": 30_000, "most": 350}, 2_000, is_tuned=True),
    Hot("sweep_keys", {"after": 0, "most": 250}, 1_000, is_tuned=True),
    Hot("lock_expired", {"now": NOW + LEASE, "most": 500, "slack": LEASE}, 12_000),
    Hot("free_orphans", {"slots": None, "after": 0, "looked_at": 5_000, "most": 500, "now": NOW}, 6_000, is_tuned=True),
    Hot("free_orphans", {"slots": None, "after": 0, "looked_at": 100, "most": 500, "now": NOW}, 600, is_tuned=True),
    Hot("lock_unserved", {"now": NOW, "most": 500, "grace": LEASE}, 10_000),
    # One call.
    Hot("send_call", SEND, 200),
    Hot("record_call", SEND | {"names": ["key:1003", "key:5002"], "queue": "direct"}, 200),
    Hot("wake_for_call", {"id": call_id(999_991), "silence": LEASE}, 50),
    Hot("send_calls", SEND_MANY, 200),
    Hot("find_unplaced", {"calls": [call_id(5)]}, 20),
    Hot("unplaced_calls", {"after": -(2**63), "most": 500}, 20, is_tuned=True),
    Hot("place_calls", {"kinds": KINDS, "calls": [call_id(5)], "kind_of": [0]}, 100, is_tuned=True),
    Hot("publish_call", {"call": IN_FLIGHT, "ticket": uuid4(), "now": None}, 20),
    Hot("claim_call", {"call": IN_FLIGHT, "ticket": uuid4(), **CLAIM}, 50),
    Hot("restart_call", {"call": RUNNING, "ticket": uuid4(), **CLAIM}, 50),
    Hot("finish_call", {"ticket": uuid4(), **FINISH}, 50),
    Hot("restore_claim", {"call": IN_FLIGHT, "ticket": uuid4(), **RESTORE}, 50),
    Hot("return_unstarted", {"call": IN_FLIGHT, "ticket": uuid4(), **UNSTARTED}, 50),
    Hot("lock_calls", {"calls": [call_id(5)]}, 50),
    Hot("revoke_calls", {"calls": [RUNNING, call_id(5)]}, 100),
    Hot("amend_call", {"call": call_id(1_015_000), **AMEND}, 100),
    Hot("cancel_calls", {"calls": [call_id(5)], "only_revoked": False, "now": NOW}, 100, is_tuned=True),
    Hot("retry_calls", {"calls": [call_id(WAITING + 30_000)]}, 100),
    Hot("run_calls_now", {"calls": [call_id(500_000)]}, 100),
    # One worker.
    Hot("record_heartbeat", {**A_WORKER, **A_CALL}, 150),
    Hot("wake_returned", {"queues": ["served"], "tasks": ["noop"], "most": 100, "now": NOW}, 4_000),
    Hot("report_unstarted", {"most": 10_000, "now": NOW}, 2_000),
    Hot("find_calls_of_worker", {"worker": uuid4()}, 100),
    # One key.
    Hot("find_keys", {"names": ["key:7", "key:9999"]}, 50),
    Hot("block_keys", {"keys": [5], "names": ["key:7"], "wait": LEASE, "now": NOW}, 100),
    Hot("end_override", {"name": "key:7"}, 20),
    Hot("pause_key", {"name": "key:7", "is_paused": True}, 50),
    # Over HTTP.
    Hot("ready_queues", {"queues": ["served", "unheard"], "most": 10, "avoid": []}, 100),
    Hot("lock_lanes", NOTHING | {"queues": ["served"]} | HTTP, 4_000, is_tuned=True),
    Hot("set_fetch_leases", {"calls": [RUNNING], "lease": None, "usual": LEASE, "worker": None, "now": NOW}, 100),
    Hot("renew_fetch_leases", {"calls": [RUNNING], "lease": None, "usual": LEASE, "worker": uuid4(), "now": NOW}, 100),
    Hot("choose_fetchable", {"queue": "pulled", "most": 10, "looks": True, "avoid": []}, 200, is_tuned=True),
    Hot("choose_fetchable", {"queue": "served", "most": 10, "looks": True, "avoid": []}, 20, is_tuned=True),
    Hot(
        "start_chosen",
        START | FETCHER,
        500,
        is_tuned=True,
        settings={"dispatcher.chosen": "{1,2,3,1001}", "dispatcher.locked": "{2,3,4,1002}"},
    ),
    Hot("read_calls", {"calls": [RUNNING]}, 20),
    Hot("find_reserved_call", {"call": RUNNING}, 30),
    Hot("find_token", {"digest": "x"}, 20),
    Hot("find_queues", {"names": ["served", "pulled"]}, 20),
    Hot("wait_for_lane", {"queue": "served"}, 50),
    Hot("wait_for_lane", {"queue": "queue1"}, 50),
    Hot("hold_lanes", {"lanes": [1]}, 30),
    Hot("find_overdue", {"wait": LEASE}, 20),
    Hot("check_leases", {"gap": LEASE, "wait": LEASE, "now": NOW}, 20),
    Hot("lock_overdue", {"now": NOW, "most": 500}, 50),
    Hot("find_unique", {"unique_key": "x", "states": ["available"], "period": None}, 20),
    Hot("store_progress", {"call": RUNNING, "ticket": uuid4(), "attempt": 1, "worker": uuid4(), **PROGRESS}, 60),
    Hot("activate_calls", {"calls": [call_id(5)]}, 50),
    Hot("queue_bounds", {"names": ["served"], "is_lock": True}, 20),
    Hot("count_states", {"most": 10_000}, 22_000, is_tuned=True, sorts="off"),
    Hot("report_queues", {"queues": ["served", "lone", "queue"], "most": 1_000, "recent": 100}, 28_000),
    Hot("find_cancellable", {"queue": "served", "states": ["available", "scheduled"], "most": 1_000}, 27_000),
    Hot("workflows_with_news", {"most": 2_000, "now": NOW}, 20),
    Hot("settle_awaited", {"most": 2_000, "now": NOW}, 20),
    Hot("check_parts", {"after": UUID(int=0), "after_part": 0, "most": 200}, 20),
    Hot("record_parts", {"workflows": [UUID(int=1)], "lost": "{}"}, 20),
    # The retention.
    Hot("trim_windows", {"key": 1, "place": 0, "most": 1_000, "margin": MARGIN, "now": NOW}, 9_000),
    Hot("trim_windows", {"key": 900, "place": 0, "most": 1_000, "margin": MARGIN, "now": None}, 2_500),
    Hot("delete_ended", {"state": "completed", "retention": timedelta(days=7), "most": 1_000, "now": NOW}, 40_000),
    Hot("delete_ended", {"state": "completed", "retention": timedelta(days=7), "most": 1_000, "now": None}, 20),
    Hot("delete_ended", {"state": "discarded", "retention": timedelta(days=7), "most": 1_000, "now": NOW}, 20),
    # Lanes one by one; and keys together, with one look at the keys of all lanes.
    Hot("unused_lanes", {"ids": list(range(100_000, 101_000)), **UNUSED}, 13_000, is_tuned=True),
    Hot("unused_lanes", {"ids": list(range(1, 1_001)), **UNUSED}, 14_000, is_tuned=True),
    Hot("unused_keys", {"ids": list(range(1, 10_001)), **UNUSED, "margin": MARGIN}, 6_000, is_tuned=True),
    Hot("lock_unused_lanes", {"ids": list(range(1, 1_001))}, 6_000, is_tuned=True),
    Hot("lock_unused_keys", {"ids": list(range(1, 1_001))}, 6_000, is_tuned=True),
    # The audit: it costs the slots, the lanes that have calls and the keys with parked lanes; by one look each.
    Hot("audit_over_concurrency", AUDIT, 4_500, is_tuned=True),
    Hot("audit_over_per_worker", AUDIT, 4_500, is_tuned=True),
    Hot("audit_miscounted", AUDIT, 4_500, is_tuned=True),
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
    Hot("audit_unplaced", AUDIT, 20, is_tuned=True),
    Hot("audit_oversized", AUDIT, 20, is_tuned=True),
    Hot("audit_unserved_due", AUDIT, 200, is_tuned=True),
    Hot("audit_queue_unserved", AUDIT, 50, is_tuned=True),
    Hot("unreported_results", {"after": NOW, "after_id": UUID(int=0), "until": NOW + LEASE, "most": 200}, 50),
    Hot("audit_unstarted", AUDIT, 4_000, is_tuned=True),
    Hot("audit_poison", AUDIT, 20, is_tuned=True),
]


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
    "what happened since": lambda: query.after(EventFilter(), query.now(), 100),
    "the latest": lambda: query.latest(EventFilter(), 100),
    "the latest of some jobs": lambda: query.latest(EventFilter(queues=["queue"], tasks=["rare"]), 100),
    "what happened to one job": lambda: query.after(EventFilter(call=RUNNING), "", 100),
    "the dead letters": dead_letters.count_dead_letters,
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
    restored = Hot("restore_claim", {"call": IN_FLIGHT, "ticket": ticket, **RESTORE}, 200)
    finished = Hot("finish_call", {"ticket": running, **FINISH}, 200)
    for hot in (claimed, restored, finished):
        plan = explain(hot, "force_generic_plan")
        assert buffers(plan) <= hot.most, outline(plan)
        assert any(node.get("Operation") == "Update" and node["Actual Rows"] for node in nodes(plan)), outline(plan)


@pytest.mark.django_db(transaction=False)
def test_a_queue_whose_bound_is_far_above_all_that_waits_need_not_be_counted() -> None:
    """It would be counted under a lock, at each send; here a million waits, and 20,000 wait for their time."""
    with transaction.atomic():
        Queue.objects.bulk_create([Queue(name=name, max_depth=depth) for name, depth in (("a", 10**6), ("b", 10**9))])
        near, far = sql.fetch("queue_bounds", Bound, {"names": ["a", "b"], "is_lock": False})
        transaction.set_rollback(True)
    assert near.most_waiting >= WAITING + 20_000
    assert not near.is_far(1)
    assert far.is_far(1_000)
    assert not far.is_far(10**9)


@pytest.mark.django_db(transaction=False)
def test_a_step_of_a_feed_touches_a_handful_of_rows() -> None:
    ends = {**CHOOSE, "claims": [uuid4()]}
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE dispatcher_callqueue SET claim = %s WHERE id = %s RETURNING ticket", [ends["claims"][0], RUNNING]
        )
        ends["tickets"] = [cursor.fetchone()[0]]
    chosen = {"dispatcher.chosen": "{200001,200002}", "dispatcher.locked": "{1003,1004,5002,5003}"}
    for hot in (
        Hot("finish_and_choose", ends, 600, is_tuned=True),
        Hot("finish_calls", ends, 300, is_tuned=True),
        Hot("start_chosen", START, 600, is_tuned=True, settings=chosen),
        Hot("hand_over_slots", {**HAND_OVER, **ends}, 600, is_tuned=True),
    ):
        plan = explain(hot, "force_generic_plan")
        assert not {node.get("Relation Name") for node in nodes(plan) if node["Node Type"] == "Seq Scan"} & TABLES
        assert buffers(plan) <= hot.most, outline(plan)
        assert any(node.get("Operation") == "Update" and node["Actual Rows"] for node in nodes(plan)), outline(plan)


@pytest.mark.parametrize("hot", [hot for hot in HOT if hot.name in KEPT], ids=str)
@pytest.mark.django_db(transaction=False)
def test_the_plan_of_a_statement_that_each_call_runs_is_kept(hot: Hot) -> None:
    """It runs by itself, without `tune`: planned again at each run, it would take twice as long."""
    statement = sql.statement(hot.name)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"PREPARE kept_{hot.name} AS {statement.text}")
        for _ in range(10):
            values = [uuid4() if name == "id" else hot.params[name] for name in statement.parameters]
            cursor.execute(f"EXECUTE kept_{hot.name}({', '.join(['%s'] * len(values))})", values)
        cursor.execute("SELECT generic_plans FROM pg_prepared_statements WHERE name = %s", [f"kept_{hot.name}"])
        (kept,) = cursor.fetchone()
        cursor.execute(f"DEALLOCATE kept_{hot.name}")
        transaction.set_rollback(True)
    assert kept > 0


@pytest.mark.django_db(transaction=False)
def test_the_plans_would_show_a_table_that_is_read_whole() -> None:
    """The tests above can fail: without its index, a statement reads everything."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("DROP INDEX call_due")
        plan = explain(Hot("next_due", {"now": NOW}, 50), "force_custom_plan")
        transaction.set_rollback(True)
    assert any(node["Node Type"] == "Seq Scan" for node in nodes(plan))
    assert buffers(plan) > 50
