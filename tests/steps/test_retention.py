"""Retention: what has ended is kept for as long as the settings say, and deleted in small batches."""

from typing import Any

import pytest

from dispatcher.lifecycle import retention
from dispatcher.lifecycle.retention import old, unused
from dispatcher.models import CallQueue, Lane, RateLimitKey
from dispatcher.states import Reason, State
from tests.builders import T0, at, erase, waiting

pytestmark = [pytest.mark.django_db, pytest.mark.pooler, pytest.mark.django]

DAY = 86_400


def ended(state: State, *, days_ago: float) -> CallQueue:
    call = waiting()
    CallQueue.objects.filter(id=call.id).update(
        state=state,
        reason=Reason.FAILED if state is State.DISCARDED else None,
        finished_at=at(-days_ago * DAY),
    )
    return call


def left() -> set[Any]:
    return set(CallQueue.objects.values_list("id", flat=True))


def test_many_are_deleted_in_small_batches_the_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(old, "_BATCH", 2)
    for day in range(8, 13):
        ended(State.COMPLETED, days_ago=day)
    assert retention.delete_ended(now=T0) == 5
    assert left() == set()


def test_a_cleanup_stops_when_its_time_is_up_and_goes_on_the_next_day(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DISPATCHER = {"cleanup_budget": 10}
    monkeypatch.setattr(old, "_BATCH", 2)
    oldest = [ended(State.COMPLETED, days_ago=20 - number) for number in range(6)]
    clock = iter(range(0, 1_000, 6))
    monkeypatch.setattr(old, "monotonic", lambda: next(clock))
    # It starts at 0; batches are over at 6 and at 12, when its time is up.
    assert retention.delete_ended(now=T0) == 4
    assert left() == {call.id for call in oldest[4:]}
    assert retention.delete_ended(now=T0) == 2
    assert left() == set()


def test_unused_lanes_and_keys_go_in_small_batches(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.DISPATCHER = {"keys": {"tenant:*": {"concurrency": 2}}}
    monkeypatch.setattr(unused, "_BATCH", 2)
    monkeypatch.setattr(unused, "_KEYS_LOOKED_AT", 3)
    kept, *others = [waiting(f"tenant:{number}") for number in range(8)]
    erase(*others)
    later = at(100 * DAY)
    assert unused.remove_lanes(now=later) == unused.remove_keys(now=later) == 7
    assert [*Lane.objects.all()] == [kept.lane]
    assert [*RateLimitKey.objects.values_list("name", flat=True)] == ["tenant:0"]
