"""Unused lanes, and keys that templates have made, go with the cleanup; what a person or a setting has made stays."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from dispatcher import api, engine
from dispatcher.lifecycle import control
from dispatcher.lifecycle.retention import unused
from dispatcher.models import CallQueue, Lane, RateLimitKey, Slot, Window
from dispatcher.states import IN_FLIGHT, TERMINAL, Reason, State
from tests.builders import SECOND, T0, at, end, erase, key, lane_of, seen, start, started, states, waiting
from tests.builders import admitted as admitted_call

pytestmark = [pytest.mark.django_db, pytest.mark.pooler]

DAY = 86_400
LATE = at(100 * DAY)
"""When everything that is written in these tests has been unused for long."""


@pytest.fixture(autouse=True)
def _templates(settings: Any) -> None:
    settings.DISPATCHER = {
        "keys": {
            "tenant:*": {"concurrency": 2},
            "tenant:named": {"concurrency": 2},
            "slow:*": {"throttle": (1, 50 * DAY)},
            "rare:*": {"rate": (5, 50 * DAY)},
            "queue:ma*": {"concurrency": 9},
        }
    }


def names() -> set[str]:
    return set(RateLimitKey.objects.values_list("name", flat=True))


def lanes() -> int:
    return Lane.objects.count()


def leave(*keys: str, **fields: Any) -> None:
    """Leave a lane, and the keys of it, that had a call once."""
    call = waiting(*keys, **fields)
    erase(call)
    Lane.objects.filter(id=call.lane_id).update(served_at=T0)


def a_month_after(seconds: float = 0) -> Any:
    return at(30 * DAY + seconds)


# Lanes


def test_a_lane_without_calls_goes_when_it_was_not_served_for_a_month() -> None:
    leave()
    engine.cleanup(now=a_month_after())
    assert lanes() == 1
    engine.cleanup(now=a_month_after(1))
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


def test_ended_calls_keep_their_lane_for_as_long_as_they_are_kept_and_it_goes_with_the_last_of_them() -> None:
    call = started("tenant:a")
    end(call)
    CallQueue.objects.update(finished_at=LATE)
    Lane.objects.update(served_at=T0)
    engine.cleanup(now=LATE)
    assert (lanes(), names()) == (1, {"tenant:a"})
    assert engine.cleanup(now=LATE + timedelta(days=8)) == 1
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


def test_a_key_is_kept_for_a_month_from_its_making() -> None:
    leave("tenant:a")
    RateLimitKey.objects.update(created_at=T0)
    Lane.objects.all().delete()
    assert unused.remove_keys(now=a_month_after()) == 0
    assert unused.remove_keys(now=a_month_after(1)) == 1


def declared_in_the_settings() -> str:
    api.declare("tenant:named", {"concurrency": 2})
    RateLimitKey.objects.update(is_from_template=True)
    leave("tenant:named")
    return "tenant:named"


def made_for_a_call_with_its_own_policy() -> str:
    call = CallQueue.objects.send("noop", rate_limit={"key": "tenant:a", "concurrency": 7})
    engine.place_unplaced()
    erase(call)
    Slot.objects.all().delete()
    return "tenant:a"


def declared_before() -> str:
    key("tenant:a", concurrency=2)
    leave("tenant:a")
    return "tenant:a"


def declared_after() -> str:
    leave("tenant:a")
    assert key("tenant:a", concurrency=5).concurrency == 2
    return "tenant:a"


def limited() -> str:
    leave("tenant:a")
    api.limit("tenant:a", {"concurrency": 3})
    return "tenant:a"


def paused() -> str:
    leave("tenant:a")
    api.pause("tenant:a")
    return "tenant:a"


def blocked_lately() -> str:
    leave("tenant:a")
    RateLimitKey.objects.update(blocked_until=LATE - timedelta(days=29))
    return "tenant:a"


def overridden() -> str:
    leave("tenant:a")
    api.override("tenant:a", until=LATE + SECOND, concurrency=1)
    return "tenant:a"


def with_a_start_that_delays_the_next() -> str:
    leave("slow:a")
    RateLimitKey.objects.update(last_start_at=LATE - timedelta(days=60), last_cost=2)
    return "slow:a"


def with_a_start_in_its_window() -> str:
    leave("rare:a")
    Window.objects.create(key=RateLimitKey.objects.get(), place=1, cost=1, last_start_at=LATE - timedelta(days=49))
    return "rare:a"


def with_a_slot() -> str:
    leave("tenant:a")
    Slot.objects.create(call_id=waiting().id, key=RateLimitKey.objects.get(), cost=1, lease_until=LATE)
    return "tenant:a"


def of_a_queue() -> str:
    leave(queue="mail")
    return "queue:mail"


def of_a_template_that_is_gone(settings: Any) -> str:
    leave("tenant:a")
    settings.DISPATCHER = {}
    return "tenant:a"


@pytest.mark.parametrize(
    "make",
    [
        declared_in_the_settings,
        made_for_a_call_with_its_own_policy,
        declared_before,
        declared_after,
        limited,
        paused,
        blocked_lately,
        overridden,
        with_a_start_that_delays_the_next,
        with_a_start_in_its_window,
        with_a_slot,
        of_a_queue,
    ],
)
def test_a_key_stays_for_each_reason(make: Callable[[], str]) -> None:
    name = make()
    engine.cleanup(now=LATE)
    assert name in names()


def test_a_key_that_no_template_would_make_again_stays(settings: Any) -> None:
    name = of_a_template_that_is_gone(settings)
    engine.cleanup(now=LATE)
    assert names() == {name}


def resumed() -> None:
    api.pause("tenant:a")
    api.resume("tenant:a")


def blocked_long_ago() -> None:
    control.block(timedelta(days=1), names=["tenant:a"], now=T0)


def overridden_until_now() -> None:
    api.override("tenant:a", until=LATE - SECOND, concurrency=1)


def overridden_to_its_end() -> None:
    api.override("tenant:a", until=LATE + SECOND, concurrency=1)
    api.end_override("tenant:a")


def started_long_ago() -> None:
    RateLimitKey.objects.update(last_start_at=T0)
    Window.objects.create(key=RateLimitKey.objects.get(), place=1, cost=1, last_start_at=T0)


@pytest.mark.parametrize(
    "change", [resumed, blocked_long_ago, overridden_until_now, overridden_to_its_end, started_long_ago]
)
def test_what_no_longer_lasts_keeps_no_key(change: Callable[[], None]) -> None:
    leave("tenant:a")
    change()
    engine.cleanup(now=LATE)
    assert names() == set()


def test_what_is_left_of_a_window_goes_after_its_key() -> None:
    leave("tenant:a")
    started_long_ago()
    engine.cleanup(now=LATE)
    engine.recover(now=LATE)
    assert not Window.objects.exists()


def test_the_next_call_makes_key_and_lane_again_with_the_limits_of_the_template() -> None:
    leave("tenant:a")
    engine.cleanup(now=LATE)
    calls = [waiting("tenant:a") for _ in range(3)]
    engine.dispense(lanes={call.lane_id for call in calls}, now=LATE)
    assert states(calls) == [State.DISPATCHED, State.DISPATCHED, State.AVAILABLE]
    assert RateLimitKey.objects.get().is_from_template
    start(calls[0], now=LATE)
    assert seen(calls[0]).state == State.ACTIVE


# How


def test_none_keeps_all(settings: Any) -> None:
    settings.DISPATCHER = {**settings.DISPATCHER, "unused_retention": None}
    leave("tenant:a")
    engine.cleanup(now=LATE)
    assert (lanes(), names()) == (1, {"tenant:a"})


def test_the_setting_says_how_long(settings: Any) -> None:
    settings.DISPATCHER = {**settings.DISPATCHER, "unused_retention": timedelta(days=1)}
    leave("tenant:a")
    RateLimitKey.objects.update(created_at=T0)
    engine.cleanup(now=at(DAY))
    assert (lanes(), names()) == (1, {"tenant:a"})
    engine.cleanup(now=at(DAY + 1))
    assert (lanes(), names()) == (0, set())


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
