"""Admit: where the calls wait that do not go, and what wakes their lanes."""

from typing import Any

import pytest

from dispatcher import api, engine
from dispatcher.lifecycle import admit, recover, schedule
from dispatcher.models import CallQueue, Lane, RateLimitKey
from dispatcher.signals import call_dropped
from dispatcher.states import State
from tests.builders import (
    MARGIN,
    T0,
    at,
    committed,
    end,
    go,
    key,
    lane_of,
    seen,
    slots_of,
    start,
    started,
    states,
    waiting,
)
from tests.steps.conftest import Broker

pytestmark = [committed, pytest.mark.pooler]


# Drop and reschedule


def test_a_call_that_asks_to_be_dropped_is_discarded_at_the_limit_with_an_event(broker: Broker) -> None:
    key("api", concurrency=1)
    received: list[Any] = []

    def receive(call_id: Any, key: str, **_: Any) -> None:
        received.append((call_id, key))

    call_dropped.connect(receive)
    try:
        first, second = calls = [waiting("api", on_limit="drop") for _ in range(2)]
        assert go(*calls) == [first.id]
    finally:
        call_dropped.disconnect(receive)
    dropped = seen(second)
    assert (dropped.state, dropped.finished_at, dropped.ticket, dropped.attempt) == (State.DISCARDED, T0, None, 0)
    assert (dropped.error["type"], dropped.error["message"]) == ("LimitReached", "dropped at the limit of api")
    assert received == [(second.id, "api")]
    assert slots_of(second) == {}


def test_a_call_is_rescheduled_to_when_its_window_has_room() -> None:
    key("api", rate=(1, 60))
    first, second, third = calls = [waiting("api", on_limit="reschedule") for _ in range(3)]
    assert go(*calls) == [first.id]
    start(first, now=T0)
    fourth = waiting("api", on_limit="reschedule")
    assert go(fourth, now=at(20)) == []
    put_off = seen(fourth)
    assert (put_off.state, put_off.scheduled_at) == (State.SCHEDULED, at(60) + MARGIN)
    assert states([second, third]) == [State.SCHEDULED, State.SCHEDULED]
    assert not lane_of(fourth).is_awake


def test_a_call_that_a_running_one_stops_is_rescheduled_by_the_setting(settings: Any) -> None:
    settings.DISPATCHER = {"reschedule_after": 7}
    key("api", concurrency=1)
    first, second = calls = [waiting("api", on_limit="reschedule") for _ in range(2)]
    assert go(*calls) == [first.id]
    assert (seen(second).state, seen(second).scheduled_at) == (State.SCHEDULED, at(7))


def test_a_rescheduled_call_goes_when_its_time_has_come(broker: Broker) -> None:
    key("api", rate=(1, 60))
    first, second = calls = [waiting("api", on_limit="reschedule") for _ in range(2)]
    assert go(*calls) == [first.id]
    start(first, now=T0)
    late = seen(second).scheduled_at
    engine.tick(now=late)
    assert states([second]) == [State.DISPATCHED]


# Parked lanes and what wakes them


def test_a_release_lets_in_as_many_parked_calls_as_it_has_room_for() -> None:
    for number in range(5):
        key(f"tenant:{number}")
    api = key("api", concurrency=2)
    running = [started("api") for _ in range(2)]
    lanes = [waiting("api", f"tenant:{number}") for number in range(5)]
    assert go(*lanes) == []
    assert Lane.objects.filter(parked_on=api).count() == 5
    for number, call in enumerate(running):
        end(call)
        assert engine.hand_over([api.id]) == 1
        assert states(lanes).count(State.DISPATCHED) == number + 1
    assert Lane.objects.filter(parked_on=api).count() == 3


def test_room_that_a_woken_lane_can_not_use_goes_to_the_next() -> None:
    api = key("api", concurrency=1)
    key("stopped", concurrency=0)
    running = started("api")
    first, second = waiting("api", "stopped", priority=1), waiting("api")
    assert go(first) == []
    assert go(second) == []
    Lane.objects.filter(id=first.lane_id).update(parked_on=api)
    end(running)
    assert engine.hand_over([api.id]) == 1
    assert states([first, second]) == [State.AVAILABLE, State.DISPATCHED]


def test_a_release_opens_no_window_and_costs_no_pass() -> None:
    api = key("api", rate=(1, 60))
    running, call = started("api"), waiting("api")
    assert go(call) == []
    end(running)
    assert admit.released_room([api.id], now=at(1)).row().keys == []
    assert engine.hand_over([api.id]) == 0


def test_a_release_does_not_open_a_key_whose_window_is_full() -> None:
    api = key("api", concurrency=5, rate=(1, 60))
    running, call = started("api"), waiting("api")
    assert go(call) == []
    end(running)
    assert admit.released_room([api.id], now=at(1)).row().keys == []
    assert admit.released_room([api.id], now=at(61)).row().keys == [api.id]


def test_time_opens_a_window_for_the_lanes_parked_on_it() -> None:
    api = key("api", rate=(1, 60))
    started("api")
    call = waiting("api")
    assert go(call, now=at(1)) == []
    assert schedule.due_keys(now=at(59)) == []
    assert schedule.due_keys(now=at(61)) == [api.id]
    engine.tick(now=at(61))
    assert states([call]) == [State.DISPATCHED]
    api.refresh_from_db()
    assert api.opens_at is None


def test_a_dearer_call_does_not_put_off_the_opening_that_a_cheaper_one_waits_for() -> None:
    key("api", rate=(2, 60))
    key("other")
    started("api")
    started("api", now=at(30))
    cheap = waiting("api")
    go(cheap, now=at(31))
    first = RateLimitKey.objects.get(name="api").opens_at
    dear = waiting(costs={"api": 2, "other": 1})
    # Its pass looks at the lanes that are awake, and not at those that are parked on their keys.
    recover.wake([dear.lane_id])
    assert engine.dispense(awake=True, now=at(32)) == 0
    assert lane_of(dear).parked_on is not None
    api = RateLimitKey.objects.get(name="api")
    assert api.opens_at == first
    assert schedule.due_keys(now=at(61)) == [api.id]


def test_a_key_without_parked_lanes_has_no_opening_time() -> None:
    row = key("api", rate=(1, 60))
    started("api")
    call = waiting("api")
    go(call, now=at(1))
    api.cancel([call.id])
    engine.tick(now=at(61))
    assert RateLimitKey.objects.get(id=row.id).opens_at is None
    assert schedule.next_due(now=at(61)) is None


@pytest.mark.parametrize("limits", [{"concurrency": 1}, {"rate": (1, 60)}, {"throttle": (1, 60)}], ids=str)
def test_a_call_that_waits_is_admitted_in_the_end(limits: Any, broker: Broker) -> None:
    key("api", **limits)
    calls = [waiting("api") for _ in range(4)]
    go(*calls)
    for tick in range(8):
        now = at(61 * (tick + 1))
        for call in CallQueue.objects.in_flight():
            start(call, now=now)
            end(call)
            engine.hand_over(lane_of(call).key_ids)
        engine.tick(now=now)
    assert set(states(calls)) == {State.COMPLETED}


# Calls that do not go


def test_an_expired_call_does_not_keep_a_pass_busy() -> None:
    """A lane that its key parks again in every pass looked like progress, so the passes never ended."""
    key("api", concurrency=0)
    stopped, late = waiting("api"), waiting("api", priority=1, expires_at=at(10))
    assert go(stopped) == []
    made = admit.admit(lanes=[late.lane_id], now=at(11))
    assert (made.allocation.asleep, list(made.allocation.parked)) == ([late.lane_id], [stopped.lane_id])
    assert admit.recheck(made, now=at(11)) == admit.Recheck(lanes=[], keys=[])
    assert engine.dispense(lanes=[late.lane_id], now=at(11)) == 0


def test_an_expired_call_is_skipped_and_those_behind_it_go() -> None:
    late, good = waiting(expires_at=at(10)), waiting()
    assert late.lane_id == good.lane_id
    assert go(late, good, now=at(10)) == [good.id]
    assert states([late]) == [State.AVAILABLE]


def test_a_call_for_later_does_not_go_before_its_time() -> None:
    call = waiting(scheduled_at=at(60))
    assert go(call) == []
    assert schedule.wake_due(now=at(59)) == 0
    assert go(call) == []
    assert schedule.wake_due(now=at(60)) == 1
    assert go(call) == [call.id]


def test_a_pass_over_nothing_changes_nothing() -> None:
    assert admit.admit(now=T0) == admit.Pass()
    assert admit.admit(lanes=[10**9], keys=[10**9], awake=True, now=T0) == admit.Pass()
