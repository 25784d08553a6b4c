"""What is hot costs what it touches, whatever waits: buffers are counted, and none is about a whole table."""

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
from django.db import connection, transaction

from dispatcher import sql
from tests.contracts.hot import NOTHING, OF_A_CALL, OF_A_TICK, OF_A_WHILE, trips
from tests.contracts.large import CALLS, large
from tests.contracts.plans import Hot, buffers, bulk, check, explain, hot, outline, prepare, read_whole

pytestmark = [pytest.mark.server, pytest.mark.django_db(transaction=False)]

TABLES: Final = {f"dispatcher_{name}" for name in ("callqueue", "lane", "lanesite", "ratelimitkey")}
TRIPS: Final = trips()
FEW: Final = 1_000
"""The calls of the small system."""
ALL_KEYS: Final = {
    *("audit_miscounted", "audit_oversized", "audit_unserved"),
    *("count_oversized", "find_calls_of_key", "report_keys"),
    *("report_runnable", "report_shares", "report_unserved", "report_waiting", "unused_keys"),
}
"""What is about every key or lane, or many, reads all of them, where there are few; no statement reads all calls."""
KEPT: Final = {"take", "send_calls", "wake_workers", "claim_call"}
"""What every call runs outside of a transaction of the engine's own."""


@pytest.fixture(scope="module")
def small(django_db_setup: None, django_db_blocker: Any) -> dict[str, int]:
    """Return what each trip touches in a small system."""
    with django_db_blocker.unblock(), large(calls=FEW, lanes=200):
        return {name: buffers(check(tried)) for name, tried in trips(FEW).items()}


@pytest.fixture(scope="module", autouse=True)
def _large(small: dict[str, int], django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock(), large():
        yield


@pytest.mark.parametrize("name", TRIPS)
def test_a_trip_beside_a_large_system_costs_what_it_does_beside_a_small_one(name: str, small: dict[str, int]) -> None:
    plan = check(TRIPS[name])
    assert plan["Actual Rows"] >= (1 if "look" in name else 2), "nothing starts"
    assert buffers(plan) * 3 <= small[name] * 4, (buffers(plan), small[name])


def test_a_trip_without_a_lane_to_serve_costs_next_to_nothing() -> None:
    check(NOTHING)


@pytest.mark.parametrize("tried", [*OF_A_CALL, *OF_A_TICK, *OF_A_WHILE], ids=str)
def test_a_hot_statement_reads_only_what_it_touches(tried: Hot) -> None:
    plan = check(tried)
    assert not read_whole(plan) & TABLES, outline(plan)


def test_no_statement_at_all_reads_the_calls_whole_or_without_need_the_lanes_or_the_keys() -> None:
    """By its generic plan, even where nothing forbids it: nothing is run."""
    offenders = []
    for name in sorted({*sql.names()} - {"explain_room", "load_auto_explain"}):
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


@pytest.mark.parametrize("tried", [tried for tried in (NOTHING, *OF_A_CALL) if tried.name in KEPT], ids=str)
def test_the_plan_of_a_statement_that_each_call_runs_is_kept(tried: Hot) -> None:
    """It runs by itself, without `tune`: planned again at each run, it would take twice as long."""
    parameters = sql.statement(tried.name).parameters
    with transaction.atomic(), connection.cursor() as cursor:
        run = prepare(Hot(tried.name, 0, (), tried.given))
        for _ in range(10):
            fresh = {"drafts": bulk("key:1500")["drafts"]}
            cursor.execute(run, [(tried.given | fresh)[name] for name in parameters])
        cursor.execute("SELECT generic_plans FROM pg_prepared_statements WHERE name = 'tried'")
        (kept,) = cursor.fetchone()
        cursor.execute("DEALLOCATE ALL")
        transaction.set_rollback(True)
    assert kept > 0


def test_the_plans_would_show_a_table_that_is_read_whole() -> None:
    """The tests above can fail: without its indexes, a statement reads everything."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("DROP INDEX call_due, call_due_queue")
        plan = explain(hot("find_due", 50))
        transaction.set_rollback(True)
    assert read_whole(plan)
    assert buffers(plan) > 50


def test_the_buffers_of_a_trip_are_those_of_all_statements_inside() -> None:
    """The tests above can fail: without the index of places, a trip reads all lanes."""
    name = "a start"
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("DROP INDEX lanesite_place")
        plan = explain(TRIPS[name])
        transaction.set_rollback(True)
    assert buffers(plan) > TRIPS[name].most
    assert CALLS > FEW
