"""Unused lanes go with the cleanup, in small batches, and what is left of their keys after them."""

from typing import Any

import pytest

from dispatcher import engine
from dispatcher.lifecycle.retention import unused
from dispatcher.models import CallQueue, Lane, RateLimitKey, Slot, Window
from dispatcher.states import IN_FLIGHT, TERMINAL, Reason, State
from tests.builders import T0, at, erase, lane_of, started, waiting
from tests.builders import admitted as admitted_call

pytestmark = [pytest.mark.django_db, pytest.mark.pooler]

DAY = 86_400
LATE = at(100 * DAY)
"""When everything that is written in these tests has been unused for long."""


@pytest.fixture(autouse=True)
def _templates(settings: Any) -> None:
    settings.DISPATCHER = {"keys": {"tenant:*": {"concurrency": 2}}}


def names() -> set[str]:
    return set(RateLimitKey.objects.values_list("name", flat=True))


def lanes() -> int:
    return Lane.objects.count()


def leave(*keys: str, **fields: Any) -> None:
    """Leave a lane, and the keys of it, that had a call once."""
    call = waiting(*keys, **fields)
    erase(call)
    Lane.objects.filter(id=call.lane_id).update(served_at=T0)


# Lanes


def test_a_lane_without_calls_goes_when_it_was_not_served_for_a_month() -> None:
    leave()
    engine.cleanup(now=at(30 * DAY))
    assert lanes() == 1
    engine.cleanup(now=at(30 * DAY + 1))
    assert lanes() == 0


@pytest.mark.parametrize("state", State)
def test_a_lane_with_a_call_stays_whatever_its_state(state: State) -> None:
    call = started("tenant:a") if state is State.ACTIVE else admitted_call("tenant:a")
    if state not in IN_FLIGHT:
        Slot.objects.all().delete()
        CallQueue.objects.filter(id=call.id).update(
            state=state,
            ticket=None,
            scheduled_at=LATE,
            reason=Reason.FAILED if state is State.DISCARDED else None,
            finished_at=LATE if state in TERMINAL else None,
        )
    assert unused.remove_lanes(now=LATE) == 0
    assert lane_of(call)
    erase(call)
    assert unused.remove_lanes(now=LATE) == 1


def test_a_lane_with_a_call_that_waits_alone_stays() -> None:
    call = waiting("tenant:a")
    CallQueue.objects.filter(id=call.id).update(oversized_key=RateLimitKey.objects.get(), oversized_cost=3)
    assert unused.remove_lanes(now=LATE) == 0
    erase(call)
    assert unused.remove_lanes(now=LATE) == 1


def test_only_lanes_without_calls_go_among_many() -> None:
    kept = [waiting(f"tenant:{name}") for name in "bd"]
    for name in "ace":
        leave(f"tenant:{name}")
    assert unused.remove_lanes(now=LATE) == 3
    assert {lane.id for lane in Lane.objects.all()} == {call.lane_id for call in kept}


@pytest.mark.parametrize("place", [{"is_awake": True}, {"is_held": True}, {"parked": True}])
def test_an_empty_lane_goes_wherever_it_is(place: dict[str, bool]) -> None:
    leave("tenant:a")
    at_key = RateLimitKey.objects.get() if place.pop("parked", False) else None
    Lane.objects.update(parked_on=at_key, **place)
    engine.cleanup(now=LATE)
    assert (lanes(), names()) == (0, set())


def test_a_pass_that_still_knows_a_lane_that_is_gone_finds_nothing_there() -> None:
    call = waiting("tenant:a")
    erase(call)
    unused.remove_lanes(now=LATE)
    assert engine.dispense(lanes=[call.lane_id], keys=[RateLimitKey.objects.get().id], now=LATE) == 0


# Keys


def test_a_key_that_a_template_made_goes_with_its_last_lane() -> None:
    leave("tenant:a")
    busy = waiting("tenant:a", priority=1)
    engine.cleanup(now=LATE)
    assert (lanes(), names()) == (1, {"tenant:a"})
    erase(busy)
    engine.cleanup(now=LATE)
    assert (lanes(), names()) == (0, set())


def started_long_ago() -> None:
    RateLimitKey.objects.update(last_start_at=T0)
    Window.objects.create(key=RateLimitKey.objects.get(), place=1, cost=1, last_start_at=T0)


def test_what_is_left_of_a_window_goes_after_its_key() -> None:
    leave("tenant:a")
    Window.objects.create(key=RateLimitKey.objects.get(), place=1, cost=1, last_start_at=T0)
    engine.cleanup(now=LATE)
    engine.recover(now=LATE)
    assert not Window.objects.exists()


# How


def test_many_go_in_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unused, "_BATCH", 2)
    monkeypatch.setattr(unused, "_KEYS_LOOKED_AT", 3)
    kept = waiting("tenant:0")
    for number in range(1, 8):
        leave(f"tenant:{number}")
    assert unused.remove_lanes(now=LATE) == 7
    assert unused.remove_keys(now=LATE) == 7
    assert lane_of(kept)
    assert names() == {"tenant:0"}


def test_a_removal_stops_when_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unused, "_BATCH", 2)
    for number in range(6):
        leave(f"tenant:{number}")
    clock = iter(range(0, 1_000, 25))
    monkeypatch.setattr(unused, "monotonic", lambda: next(clock))
    # It starts at 0; slices begin at 25 and at 50, and at 75 its minute is over.
    assert unused.remove_lanes(now=LATE) == 4
    assert unused.remove_lanes(now=LATE) == 2
