"""The hot statements cost what they touch, whatever waits: their plans, with a million calls in the table."""

import json
from collections.abc import Iterator
from typing import Any, Final
from uuid import uuid4

import pytest
from django.db import connection, transaction

from dispatcher import sql
from tests.contracts.large import IN_FLIGHT, NOW, RUNNING, call_id, large
from tests.contracts.plans import (
    ALONE,
    FEED,
    LEASE,
    MARGIN,
    PASS,
    Hot,
    buffers,
    bulk,
    check,
    chosen,
    ends,
    explain,
    hot,
    kinds,
    nodes,
    outline,
    prepare,
    read_whole,
)

pytestmark = [pytest.mark.server, pytest.mark.django_db(transaction=False)]

TABLES: Final = {"dispatcher_callqueue", "dispatcher_lane", "dispatcher_ratelimitkey"}
A_HUNDRED: Final = list(range(2, 102))
END: Final = ends(RUNNING)
STALE: Final = END | {"claims": [call_id(0)]}
"""Of an attempt that is another claim's by now: it changes nothing."""
GATE: Final = {"needs_worker": True, "now": NOW}
LOCK: Final = {**GATE, "most": 100, "slack": 16_000}
CLAIM: Final = {"ahead": LEASE, "now": NOW}
ONE: Final = {"call": IN_FLIGHT, "ticket": IN_FLIGHT}
RUN: Final = {"call": RUNNING, "ticket": RUNNING}
WEIGHTS: Final = json.dumps([{"queue": name, "due": 1, "stride": 2} for name in ("lone", "direct", "queue")])
SEND: Final = {"names": ["key:5000"], "needs_worker": True, "ahead": 968}
WORKER: Final = {"name": "celery@here", "host": "here", "pid": 1, "pool": "prefork", "processes": 8}
AUDIT: Final = {"most": 1_000, "late": MARGIN, **GATE}
AUDITS: Final = {
    **dict.fromkeys(("over_concurrency", "over_per_worker", "over_rate", "miscounted"), 4_500),
    "slot_without_call": 6_000,
    "order": 6_000,
    "wrong_slots": 16_000,
    "unserved_asleep": 15_000,
    "unstarted": 4_000,
    **dict.fromkeys(("lease_unrecovered", "call_without_slot", "unserved_due"), 200),
    **dict.fromkeys(("over_throttle", "two_tickets", "unserved_held"), 100),
    "unserved_awake": 1_500,
    "unserved_parked": 50,
    "queue_unserved": 50,
    **dict.fromkeys(("unplaced", "oversized", "poison"), 20),
}
CHOSEN: Final = (*FEED, chosen("{1,2,3,1001}", "{2,3,4,1002}"))
NONE: Final = chosen("{}", "{}")

CHANGING: Final = [
    hot("claim_call", 200, ALONE, **ONE, **CLAIM),
    hot("restore_claim", 200, ALONE, **ONE, claim=None, now=NOW),
    hot("finish_call", 200, ALONE, **RUN, claim=RUNNING, now=NOW),
    hot("finish_and_choose", 600, FEED, **END, queues=["direct"], most=4),
    hot("finish_calls", 300, FEED, **END),
    hot("start_chosen", 600, (*FEED, chosen("{200001,200002}", "{1003,1004,5002,5003}"))),
    hot("hand_over_slots", 600, FEED, **END, queues=["direct"]),
]
"""What each call costs: these change a row, and touch a handful."""
HOT: Final = [
    # A pass: what it costs is the lanes that it takes and the calls at their heads.
    hot("lock_lanes", 5_000, PASS, **LOCK, awake=True),
    hot("lock_lanes", 4_000, PASS, **LOCK, keys=[1], wait_for=1),
    hot("lock_lanes", 200, PASS, **LOCK, lanes=[1]),
    hot("lock_lanes", 4_000, PASS, **LOCK, queues=["served"]),
    hot("lock_lanes", 4_000, PASS, **LOCK | {"needs_worker": False}, queues=["served"], deliveries=["http"]),
    hot("count_queue_usage", 800, PASS, **GATE, lanes=A_HUNDRED),
    hot("count_key_usage", 6_000, PASS, keys=list(range(1001, 1201)), now=NOW, worker=None),
    hot("count_key_usage", 3_000, PASS, keys=list(range(1, 21)), now=NOW, worker=None),
    hot("read_lane_heads", 4_000, PASS, lanes=A_HUNDRED, heads=6, stuck=[10_050], now=NOW),
    hot("read_lane_heads", 2_500, PASS, lanes=[1], heads=501, now=NOW),
    hot(
        "recheck", 1_500, asleep=A_HUNDRED, full=[1, 2], held=[1, 1], keys_with_room=[1, 2], filled=["served"], now=NOW
    ),
    hot("find_released_room", 150, keys=[1, 2], lane=11_002, now=NOW),
    hot("changed_lanes", 500, PASS, lanes=A_HUNDRED, positions=[1] * 100),
    hot("changed_lanes", 1_000, PASS, lanes=list(range(1_002, 1_102)), positions=[1] * 100),
    hot("changed_lanes", 100, PASS, call=call_id(5), positions=[]),
    hot("wake_lanes", 3_000, lanes=A_HUNDRED),
    hot("clear_opening_times", 200, PASS, keys=[1, 9_999]),
    # A finish that admits the next call.
    hot("lock_released", 100, PASS, call=RUNNING),
    hot("admit_released", 300, (*PASS, chosen("{1}", "{2}"))),
    hot("admit_released", 20, (*PASS, NONE)),
    # One step of a feed.
    hot("finish_and_choose", 1_000, FEED, **STALE, keys=[1, 2], queues=["lone", "direct", "queue"], most=4),
    hot("finish_and_choose_by_weight", 400, FEED, **STALE, queues=["direct"], most=4, shares=WEIGHTS),
    hot("start_chosen", 500, CHOSEN),
    hot("start_chosen", 500, CHOSEN, is_fetch=True, worker=None, tasks=None),
    hot("start_chosen_by_weight", 500, CHOSEN, shares=WEIGHTS),
    hot("choose_fetchable", 200, PASS, queue="pulled", most=10, looks=True),
    hot("find_opened", 150, keys=[1, 2], queues=["direct"], avoid=[3]),
    hot("start_calls", 200, PASS, calls=[IN_FLIGHT], claims=[IN_FLIGHT]),
    hot("waiting_queues", 50),
    hot("has_lanes", 50, PASS, queues=["direct"], reached=[1]),
    hot("wake_feeds", 200, queues=["direct"]),
    # What time brings. Without a time given, as the engine asks, nothing is due yet.
    hot("wake_due", 20, queues=None),
    hot("wake_due", 20_000, queues=None, now=NOW),
    hot("discard_expired", 20),
    hot("discard_expired", 2_000, now=NOW),
    # Of a thousand calls in flight, those that are dispatched: the index holds what is published, too.
    hot("find_due", 100, PASS),
    hot("due_keys", 20, most=100),
    hot("due_queues", 100, **GATE, most=100),
    hot("next_due", 50),
    # What is lost, or left asleep.
    hot("unpublished_calls", 20, after=MARGIN),
    hot("unpublished_calls", 10_000, after=MARGIN, now=NOW),
    hot("sweep_lanes", 2_000, PASS, after=30_000, most=350),
    hot("sweep_keys", 1_000, PASS, most=250),
    hot("lock_expired", 12_000, now=NOW + LEASE, slack=LEASE, serves_http=True),
    hot("free_orphans", 6_000, PASS, slots=None, now=NOW),
    hot("lock_unserved", 10_000, now=NOW),
    hot("unplaced_calls", 20, PASS, after=-(2**63)),
    # One call.
    hot("send_call", 200, **SEND),
    hot("record_call", 200, **SEND | {"names": ["key:1003", "key:5002"]}, queue="direct"),
    hot("wake_for_call", 50, id=call_id(999_991)),
    hot("send_calls", 200, **bulk("key:5000", "key:4999", queue="lone"), now=NOW),
    hot("place_calls", 100, PASS, kinds=kinds("key:5000", queue="lone"), calls=[call_id(5)], kind_of=[0]),
    hot("publish_call", 20, **ONE),
    hot("restart_call", 50, call=RUNNING, **CLAIM),
    hot("return_unstarted", 50, call=IN_FLIGHT, claim=None, now=NOW),
    # One worker.
    hot("record_heartbeat", 150, **WORKER, queues=["served"], calls=[RUNNING], tickets=[RUNNING], now=NOW),
    hot("find_calls_of_worker", 100),
    hot("wake_returned", 4_000, queues=["served"], most=100, now=NOW),
    hot("report_unstarted", 2_000, most=10_000, now=NOW),
    hot("unreported_results", 50, after=NOW, after_id=call_id(0), until=NOW + LEASE, most=200),
    # The retention. Lanes one by one; and keys together, with one look at the keys of all lanes.
    hot("trim_windows", 9_000, key=1, most=1_000, now=NOW),
    hot("delete_ended", 40_000, most=1_000, now=NOW),
    hot("delete_ended", 20, most=1_000),
    hot("unused_lanes", 14_000, PASS, ids=list(range(1, 1_001)), now=NOW),
    hot("unused_keys", 6_000, PASS, ids=list(range(1, 10_001)), now=NOW),
    hot("lock_unused_lanes", 6_000, PASS, ids=list(range(1, 1_001))),
    hot("lock_unused_keys", 6_000, PASS, ids=list(range(1, 1_001))),
    # The audit: it costs the slots, the lanes that have calls and the keys with parked lanes; by one look each.
    *(hot(f"audit_{rule}", most, PASS, **AUDIT) for rule, most in AUDITS.items()),
]
ALL_KEYS: Final = {
    *("audit_miscounted", "audit_oversized", "audit_unserved_parked", "count_oversized", "unused_keys"),
    *("find_calls_of_key", "report_keys", "report_unserved", "report_waiting", "member_limits"),
}
"""What is about every key or lane reads all of them, and so may what is about the members of groups, which may be all
keys; no statement reads all calls."""
KEPT: Final = {"send_call", "record_call", "wake_for_call", "claim_call", "restart_call", "finish_call"}
"""What every call runs outside of a transaction of the engine's own."""


@pytest.fixture(scope="module", autouse=True)
def _large(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock(), large():
        yield


@pytest.mark.parametrize("tried", [*CHANGING, *HOT], ids=str)
def test_a_hot_statement_reads_only_what_it_touches(tried: Hot) -> None:
    plan = check(tried)
    assert not read_whole(plan) & TABLES, outline(plan)
    if tried in CHANGING:
        assert any(node.get("Operation") == "Update" and node["Actual Rows"] for node in nodes(plan)), outline(plan)


def test_no_statement_at_all_reads_the_calls_whole_or_without_need_the_lanes_or_the_keys() -> None:
    """By its generic plan, even outside of a pass, where nothing forbids it: nothing is run."""
    offenders = []
    for name in sorted({*sql.names()} - {"begin", "commit"}):
        count = len(sql.statement(name).parameters)
        with transaction.atomic(), connection.cursor() as cursor:
            run = prepare(hot(name, 0))
            cursor.execute(f"EXPLAIN (FORMAT JSON) {run}", [None] * count or None)
            (answer,) = cursor.fetchone()
            cursor.execute("DEALLOCATE ALL")
        whole = read_whole((json.loads(answer) if isinstance(answer, str) else answer)[0]["Plan"])
        whole &= {"dispatcher_callqueue"} if name in ALL_KEYS else TABLES
        offenders += [f"{name} reads {table} whole: find its rows by an index" for table in sorted(whole)]
    assert not offenders, "\n".join(offenders)


@pytest.mark.parametrize("tried", [tried for tried in (*CHANGING, *HOT) if tried.name in KEPT], ids=str)
def test_the_plan_of_a_statement_that_each_call_runs_is_kept(tried: Hot) -> None:
    """It runs by itself, without `tune`: planned again at each run, it would take twice as long."""
    parameters = sql.statement(tried.name).parameters
    with transaction.atomic(), connection.cursor() as cursor:
        run = prepare(Hot(tried.name, 0, (), tried.given))
        for _ in range(10):
            cursor.execute(run, [uuid4() if name == "id" else tried.given[name] for name in parameters])
        cursor.execute("SELECT generic_plans FROM pg_prepared_statements WHERE name = 'tried'")
        (kept,) = cursor.fetchone()
        cursor.execute("DEALLOCATE ALL")
        transaction.set_rollback(True)
    assert kept > 0


def test_the_plans_would_show_a_table_that_is_read_whole() -> None:
    """The tests above can fail: without its index, a statement reads everything."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("DROP INDEX call_due")
        plan = explain(hot("next_due", 50, now=NOW))
        transaction.set_rollback(True)
    assert read_whole(plan)
    assert buffers(plan) > 50
