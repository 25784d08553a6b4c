"""Due: what time alone brings."""

from datetime import timedelta
from typing import Any, Never

import pytest
from django.db import OperationalError
from django.utils import timezone

from dispatcher import engine
from dispatcher.engine.ticker import Ticker
from dispatcher.lifecycle import control, finish, schedule
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.states import State
from tests.builders import SECOND, admitted, at, go, key, lane_of, seen, started, states, ticket_of, waiting

pytestmark = pytest.mark.django_db


# Calls whose time has come


def test_a_scheduled_call_waits_in_its_lane_from_its_time_on() -> None:
    early, late = waiting(scheduled_at=at(10)), waiting(scheduled_at=at(20))
    assert schedule.wake_due(now=at(9.999)) == 0
    assert schedule.wake_due(now=at(10)) == 1
    assert states([early, late]) == [State.AVAILABLE, State.SCHEDULED]
    assert lane_of(early).is_awake


def test_a_retryable_call_waits_in_its_lane_from_its_time_on() -> None:
    call = started()
    finish.fail(call.id, ticket_of(call), error=ValueError(), attempt=1, policy=None, wait=10 * SECOND, now=at(0))
    assert schedule.wake_due(now=at(9)) == 0
    assert schedule.wake_due(now=at(10)) == 1
    assert (seen(call).state, seen(call).attempt) == (State.AVAILABLE, 1)


def test_calls_become_due_in_batches_the_earliest_first(settings: Any) -> None:
    settings.DISPATCHER = {"batch": 2}
    calls = [waiting(scheduled_at=at(second)) for second in (3, 1, 2)]
    assert schedule.wake_due(now=at(60)) == 2
    assert states(calls) == [State.SCHEDULED, State.AVAILABLE, State.AVAILABLE]
    assert [schedule.wake_due(now=at(60)) for _ in range(2)] == [1, 0]


def test_a_call_that_becomes_due_stands_in_order_of_sending() -> None:
    scheduled, other = waiting(scheduled_at=at(10)), waiting()
    schedule.wake_due(now=at(10))
    assert go(scheduled, now=at(10)) == [scheduled.id, other.id]


def test_a_lane_that_is_parked_stays_parked_when_more_calls_become_due() -> None:
    api = key("api", concurrency=0)
    first, second = waiting("api"), waiting("api", scheduled_at=at(10))
    go(first)
    schedule.wake_due(now=at(10))
    assert lane_of(second).parked_on_id == api.id


# Calls that did not start in time


def test_a_call_that_did_not_start_in_time_is_discarded() -> None:
    calls = [
        waiting(expires_at=at(10)),
        waiting(scheduled_at=at(5), expires_at=at(10)),
        waiting(expires_at=at(11)),
        waiting(),
    ]
    assert schedule.discard_expired(now=at(9.999)) == 0
    assert schedule.discard_expired(now=at(10)) == 2
    assert states(calls) == [State.DISCARDED, State.DISCARDED, State.AVAILABLE, State.AVAILABLE]
    discarded = seen(calls[0])
    assert (discarded.finished_at, discarded.attempt, discarded.error["type"]) == (at(10), 0, "Expired")
    assert "not started by 2030-01-01" in discarded.error["message"]


def test_a_call_in_flight_does_not_expire_by_itself() -> None:
    calls = [admitted(expires_at=at(10)), started(expires_at=at(10))]
    assert schedule.discard_expired(now=at(60)) == 0
    assert states(calls) == [State.DISPATCHED, State.ACTIVE]


def test_a_call_that_failed_and_expired_is_not_tried_again() -> None:
    call = started(expires_at=at(10))
    finish.fail(call.id, ticket_of(call), error=ValueError(), attempt=1, policy=None, wait=20 * SECOND, now=at(0))
    assert schedule.discard_expired(now=at(10)) == 1
    assert (seen(call).state, len(seen(call).errors)) == (State.DISCARDED, 1)


# Keys that open


def test_a_key_is_due_from_its_opening_on() -> None:
    api = key("api", rate=(1, 10))
    started("api")
    call = waiting("api")
    go(call, now=at(1))
    opens_at = RateLimitKey.objects.get(id=api.id).opens_at
    assert opens_at is not None
    assert schedule.due_keys(now=opens_at - SECOND / 1000) == []
    assert schedule.due_keys(now=opens_at) == [api.id]


def test_an_override_that_has_run_out_is_cleared_and_its_key_is_due() -> None:
    api = key("api", concurrency=5)
    control.override("api", {"concurrency": 0, "rate": (1, 1), "throttle": (1, 1)}, at(60))
    call = waiting("api")
    assert go(call) == []
    assert schedule.due_keys(now=at(59)) == []
    engine.tick(now=at(60))
    assert states([call]) == [State.DISPATCHED]
    api.refresh_from_db()
    assert {getattr(api, field.name) for field in api._meta.fields if field.name.startswith("override_")} == {None}
    assert api.concurrency == 5


def test_no_more_keys_are_due_at_once_than_lanes_go_into_a_pass(settings: Any) -> None:
    settings.DISPATCHER = {"lanes_per_pass": 2}
    keys = [key(name) for name in "abc"]
    for number, each in enumerate(keys):
        RateLimitKey.objects.filter(id=each.id).update(opens_at=at(-number))
    assert schedule.due_keys(now=at(0)) == [keys[1].id, keys[2].id]


# How long until something is due


def test_nothing_is_due_where_nothing_waits_for_time() -> None:
    key("api", concurrency=1)
    calls = [admitted("api"), started(), waiting("api")]
    go(*calls)
    assert schedule.next_due(now=at(0)) is None


@pytest.mark.parametrize("what", ["call", "retry", "expiry", "key", "override"])
def test_the_earliest_of_all_is_what_is_due_next(what: str) -> None:
    later = at(1000)
    key("api")
    key("other")
    waiting(scheduled_at=later, expires_at=later + SECOND)
    control.override("other", {"concurrency": 1}, later)
    RateLimitKey.objects.filter(name="other").update(opens_at=later)
    assert schedule.next_due(now=at(0)) == timedelta(seconds=1000)
    match what:
        case "call":
            waiting(scheduled_at=at(5))
        case "retry":
            call = started()
            finish.fail(
                call.id, ticket_of(call), error=ValueError(), attempt=1, policy=None, wait=5 * SECOND, now=at(0)
            )
        case "expiry":
            waiting(expires_at=at(5))
        case "key":
            RateLimitKey.objects.filter(name="api").update(opens_at=at(5))
        case "override":
            control.override("api", {"concurrency": 1}, at(5))
    assert schedule.next_due(now=at(0)) == 5 * SECOND
    assert schedule.next_due(now=at(7)) == -2 * SECOND


# A tick


def test_a_tick_brings_all_that_is_due() -> None:
    key("api", rate=(1, 10))
    started("api")
    parked = waiting("api")
    go(parked, now=at(1))
    scheduled, expiring = waiting(scheduled_at=at(20)), waiting(expires_at=at(20), queue="b")
    asleep = waiting(queue="c")
    assert engine.tick(now=at(20)) == 3
    assert states([parked, scheduled, asleep, expiring]) == [State.DISPATCHED] * 3 + [State.DISCARDED]


def test_a_tick_without_anything_to_do_changes_nothing() -> None:
    key("api", concurrency=1)
    calls = [started("api"), waiting("api"), waiting(scheduled_at=at(60))]
    go(calls[1])
    before = list(CallQueue.objects.order_by("id").values())
    assert engine.tick(now=at(1)) == 0
    assert list(CallQueue.objects.order_by("id").values()) == before


def test_a_tick_goes_on_until_the_backlog_of_the_awake_is_done(settings: Any) -> None:
    settings.DISPATCHER = {"batch": 2, "lanes_per_pass": 2}
    for number in range(5):
        for _ in range(3):
            waiting(queue=f"queue{number}")
    assert engine.tick(now=at(0)) == 15


def test_a_tick_serves_what_falls_due_within_its_second(settings: Any) -> None:
    settings.DISPATCHER = {"tick": 5}
    soon = CallQueue.objects.send("noop", scheduled_at=timezone.now() + SECOND / 4)
    later = CallQueue.objects.send("noop", scheduled_at=timezone.now() + 60 * SECOND)
    assert states([soon]) == [State.SCHEDULED]
    # It waits for the first, and ends when nothing more is due before its own end.
    assert engine.tick() == 1
    assert states([soon, later]) == [State.DISPATCHED, State.SCHEDULED]


def test_a_tick_that_comes_while_its_process_serves_another_returns_at_once() -> None:
    ticker = Ticker()
    assert ticker.begin(SECOND)
    call = waiting()
    assert engine.tick(ticker=ticker) == 0
    assert states([call]) == [State.AVAILABLE]
    # Another process does not mind, and this one neither when the first tick has ended.
    assert engine.tick(ticker=Ticker()) == 1
    ticker.abort()
    waiting()
    assert engine.tick(ticker=ticker) == 1


def test_a_tick_that_is_served_looks_again_for_those_that_came_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    ticker, late = Ticker(), []

    def look() -> timedelta | None:
        """Have a call and a tick come between the look of a pass and the end of the tick."""
        if not late:
            late.append(waiting())
            assert engine.tick(ticker=ticker) == 0
        return None

    monkeypatch.setattr(schedule, "next_due", look)
    assert engine.tick(ticker=ticker) == 1
    assert states(late) == [State.DISPATCHED]


def test_a_tick_that_fails_leaves_the_next_one_free_to_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    ticker, call = Ticker(), waiting()

    def fail() -> Never:
        raise OperationalError

    with monkeypatch.context() as broken:
        broken.setattr(schedule, "next_due", fail)
        with pytest.raises(OperationalError):
            engine.tick(ticker=ticker)
    assert states([call]) == [State.DISPATCHED]
    waiting()
    assert engine.tick(ticker=ticker) == 1
