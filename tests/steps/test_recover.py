"""Recover: in batches and slices; and it trims windows."""

from datetime import timedelta
from typing import Any

import pytest

from dispatcher import engine
from dispatcher.lifecycle import recover
from dispatcher.models import Slot, Window
from dispatcher.states import State
from tests.builders import admitted, at, erase, go, key, seen, started, states, ticket_of, waiting

pytestmark = [pytest.mark.django_db, pytest.mark.pooler]


@pytest.fixture(autouse=True)
def _leases(settings: Any) -> None:
    settings.DISPATCHER = {"dispatch_lease": 100, "run_lease": 60}


def test_a_task_that_no_worker_knows_costs_an_attempt_and_gives_its_room_back() -> None:
    key("api", concurrency=1)
    call, second = admitted("api", retry={"max_attempts": 1}), waiting("api")
    assert go(second) == []
    assert engine.fail(call.id, ticket_of(call), LookupError("no such task"))
    assert (seen(call).state, seen(call).attempt) == (State.DISCARDED, 1)
    assert states([second]) == [State.DISPATCHED]


def test_no_more_than_a_batch_of_slots_is_freed_at_once(settings: Any) -> None:
    settings.DISPATCHER = {"batch": 2}
    erase(*[admitted() for _ in range(5)])
    for left in (3, 1, 0):
        engine.recover(now=at(1))
        assert Slot.objects.count() == left


def test_a_recovery_looks_at_a_slice_of_the_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recover, "_SLOTS", 2)
    calls = [admitted() for _ in range(5)]
    erase(calls[1], calls[4])
    for left in (4, 4, 3):
        engine.recover(now=at(1))
        assert Slot.objects.count() == left
    # From the first one on again.
    erase(calls[0])
    engine.recover(now=at(1))
    assert Slot.objects.count() == 2


def test_parts_of_windows_that_can_no_longer_count_are_forgotten() -> None:
    key("api", rate=(9, 60))
    key("long", rate=(9, timedelta(hours=1)))
    started("api", "long")
    started("api", now=at(100))
    engine.recover(now=at(239))
    assert Window.objects.count() == 3
    engine.recover(now=at(241))
    assert sorted(Window.objects.values_list("key__name", "last_start_at")) == [
        ("api", at(100)),
        ("long", at(0)),
    ]
    engine.recover(now=at(14_401))
    assert not Window.objects.exists()


def test_a_window_of_milliseconds_is_kept_for_as_long_as_its_margin(settings: Any) -> None:
    settings.DISPATCHER = {"margin": 1}
    key("api", rate=(9, timedelta(milliseconds=1)))
    started("api")
    engine.recover(now=at(1.001))
    assert Window.objects.exists()
