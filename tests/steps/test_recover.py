"""Recover: what dead processes and lost messages left behind is put right."""

import logging
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from dispatcher import api, engine
from dispatcher.lifecycle import claim, finish, recover
from dispatcher.models import CallQueue, Lane, RateLimitKey, Slot, Window
from dispatcher.states import State
from tests.builders import admitted, at, erase, go, key, lane_of, renew, seen, started, states, ticket_of, waiting

pytestmark = [pytest.mark.django_db, pytest.mark.pooler]


@pytest.fixture(autouse=True)
def _leases(settings: Any) -> None:
    settings.DISPATCHER = {"dispatch_lease": 100, "run_lease": 60}


# Leases


def test_a_message_that_was_lost_goes_back_without_spending_an_attempt() -> None:
    call = admitted()
    assert engine.recover(now=at(100)) == 0
    assert engine.recover(now=at(100.1)) == 1
    stored = seen(call)
    assert (stored.attempt, stored.errors) == (0, [])
    assert stored.state == State.DISPATCHED
    assert stored.ticket not in (None, call.ticket)
    assert claim.claim(call.id, ticket_of(call), now=at(101)) is claim.Refused.STALE


def test_a_worker_that_fell_silent_costs_its_call_an_attempt() -> None:
    call = started(retry={"max_attempts": 2, "initial_interval": 30, "jitter": False})
    assert engine.recover(now=at(60)) == 0
    assert engine.recover(now=at(61)) == 1
    stored = seen(call)
    assert (stored.state, stored.attempt, stored.scheduled_at) == (State.RETRYABLE, 1, at(91))
    assert (stored.error["type"], stored.error["attempt"]) == ("WorkerLost", 1)
    assert "silent for longer than a lease" in stored.error["message"]
    assert not Slot.objects.exists()


def test_a_call_whose_workers_are_always_lost_is_discarded_in_the_end() -> None:
    call = started(retry={"max_attempts": 1})
    engine.recover(now=at(61))
    assert states([call]) == [State.DISCARDED]


def test_a_worker_that_comes_back_after_the_recovery_changes_nothing() -> None:
    call = started()
    engine.recover(now=at(61))
    assert renew([(call.id, ticket_of(call))], now=at(62)) == 0
    assert finish.complete(call.id, ticket_of(call), result="late") is None
    assert states([call]) == [State.RETRYABLE]


def test_a_heartbeat_keeps_a_call() -> None:
    call = started()
    renew([(call.id, ticket_of(call))], now=at(50))
    assert engine.recover(now=at(61)) == 0
    assert states([call]) == [State.ACTIVE]


def test_the_room_of_what_was_recovered_goes_to_those_who_wait() -> None:
    key("api", concurrency=2)
    lost = [started("api", retry={"max_attempts": 1}) for _ in range(2)]
    calls = [waiting("api") for _ in range(3)]
    assert go(*calls) == []
    assert engine.recover(now=at(61)) == 2
    assert states(lost) == [State.DISCARDED, State.DISCARDED]
    assert states(calls) == [State.DISPATCHED, State.DISPATCHED, State.AVAILABLE]


def test_a_call_of_several_keys_is_recovered_once() -> None:
    for name in "abc":
        key(name)
    call = admitted("a", "b", "c")
    assert [found.call_id for found in recover.expired(now=at(101))] == [call.id]
    assert engine.recover(now=at(101)) == 1


def test_one_slot_without_news_is_enough(settings: Any) -> None:
    key("a")
    key("b")
    call = started("a", "b")
    Slot.objects.filter(key__name="a").update(lease_until=at(5))
    (found,) = recover.expired(now=at(10))
    assert (found.call_id, found.ticket) == (call.id, call.ticket)


def test_no_more_than_a_batch_is_recovered_at_once(settings: Any) -> None:
    settings.DISPATCHER = {"dispatch_lease": 100, "batch": 2}
    for _ in range(5):
        admitted()
    assert [engine.recover(now=at(101)) for _ in range(4)] == [2, 2, 1, 0]


def test_what_was_recovered_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    admitted()
    with caplog.at_level(logging.WARNING, logger="dispatcher"):
        engine.recover(now=at(50))
        assert caplog.records == []
        engine.recover(now=at(101))
    assert "calls put back, as their leases had run out or no worker serves them: 1" in caplog.text


# A process that is known to be gone


def test_a_call_that_is_known_to_be_lost_ends_its_attempt_at_once() -> None:
    key("api", concurrency=1)
    call, second = started("api"), waiting("api")
    assert go(second) == []
    assert engine.lose(call.id, ticket_of(call), RuntimeError("killed"), is_crash=True, now=at(1))
    assert (seen(call).state, seen(call).error["message"]) == (State.RETRYABLE, "killed")
    assert states([second]) == [State.DISPATCHED]


def test_a_call_that_is_lost_before_its_claim_goes_back_unspent() -> None:
    call = admitted()
    assert engine.lose(call.id, ticket_of(call), RuntimeError("killed"), is_crash=True, now=at(1))
    assert (seen(call).attempt, seen(call).errors) == (0, [])
    assert states([call]) == [State.DISPATCHED]
    assert seen(call).ticket != call.ticket


def test_a_task_that_no_worker_knows_costs_an_attempt_and_gives_its_room_back() -> None:
    key("api", concurrency=1)
    call, second = admitted("api", retry={"max_attempts": 1}), waiting("api")
    assert go(second) == []
    assert engine.fail(call.id, ticket_of(call), LookupError("no such task"))
    assert (seen(call).state, seen(call).attempt) == (State.DISCARDED, 1)
    assert states([second]) == [State.DISPATCHED]


# Calls that were deleted


def test_a_slot_whose_call_is_gone_is_freed_and_its_room_goes_to_those_who_wait() -> None:
    key("api", concurrency=2)
    calls = [admitted("api") for _ in range(2)]
    last = waiting("api")
    assert go(last) == []
    erase(*calls)
    assert engine.recover(now=at(1)) == 0
    assert states([last]) == [State.DISPATCHED]
    assert list(Slot.objects.values_list("call", flat=True)) == [last.id]


def test_a_slot_of_a_call_that_had_started_is_freed_when_its_lease_is_over() -> None:
    key("api", concurrency=1)
    running, second = started("api"), waiting("api")
    assert go(second) == []
    erase(running)
    engine.recover(now=at(59))
    assert states([second]) == [State.AVAILABLE], "its process may still run"
    engine.recover(now=at(61))
    assert states([second]) == [State.DISPATCHED]


def test_a_slot_of_a_call_that_another_statement_has_ended_is_freed() -> None:
    key("api", concurrency=1)
    ended, second = admitted("api"), waiting("api")
    assert go(second) == []
    CallQueue.objects.filter(id=ended.id).update(state=State.COMPLETED, ticket=None, finished_at=at(1))
    engine.recover(now=at(2))
    assert states([ended, second]) == [State.COMPLETED, State.DISPATCHED]


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


# The sweep


def test_the_sweep_wakes_a_lane_that_sleeps_over_waiting_calls(caplog: pytest.LogCaptureFixture) -> None:
    call = waiting()
    assert not lane_of(call).is_awake
    with caplog.at_level(logging.INFO, logger="dispatcher"):
        assert engine.sweep() == 1
    assert "the sweep woke 1 lanes" in caplog.text
    assert lane_of(call).is_awake
    assert engine.sweep() == 0


def test_the_sweep_leaves_alone_what_is_in_order() -> None:
    row = key("api", concurrency=0)
    parked, awake, ended, later = (
        waiting("api"),
        waiting(queue="b"),
        waiting(queue="c"),
        waiting(queue="d", scheduled_at=at(60)),
    )
    go(parked)
    recover.wake([awake.lane_id])
    api.cancel([ended.id])
    before = list(Lane.objects.order_by("id").values())
    assert recover.ask_sweep_lanes(0, 100).row() == recover.Swept(stranded=[], last=0)
    assert list(Lane.objects.order_by("id").values()) == before
    assert lane_of(parked).parked_on_id == row.id
    assert states([later]) == [State.SCHEDULED]


def test_the_sweep_leaves_an_expired_call_to_the_tick() -> None:
    late = waiting(expires_at=timezone.now() + timedelta(hours=1))
    CallQueue.objects.filter(id=late.id).update(expires_at=timezone.now() - timedelta(seconds=1))
    assert engine.sweep() == 0
    engine.tick()
    assert states([late]) == [State.DISCARDED]


def test_the_sweep_goes_on_where_it_stopped() -> None:
    lanes = sorted(waiting(queue=name).lane_id for name in "abcde")
    first = recover.ask_sweep_lanes(0, 2).row()
    assert first == recover.Swept(stranded=lanes[:2], last=lanes[1])
    second = recover.ask_sweep_lanes(first.last, 2).row()
    assert second == recover.Swept(stranded=lanes[2:4], last=lanes[3])
    assert recover.ask_sweep_lanes(second.last, 2).row() == recover.Swept(stranded=lanes[4:], last=0)


def test_a_hand_over_that_never_came_is_made_up_for_within_two_ticks() -> None:
    key("api", concurrency=1)
    first, second = started("api"), waiting("api")
    assert go(second) == []
    # The worker dies between the commit of its finish and the hand-over.
    finish.complete(first.id, ticket_of(first), result=None)
    engine.tick(now=at(1))
    engine.tick(now=at(2))
    assert states([second]) == [State.DISPATCHED]


def test_the_sweep_names_only_keys_with_unused_room() -> None:
    limits: dict[str, Any] = {
        "full": {"concurrency": 1},
        "paused": {},
        "timed": {"rate": (1, 60)},
        "keys_with_room": {"concurrency": 1},
    }
    keys = {name: key(name, **given) for name, given in limits.items()}
    running = {name: started(name) for name in ("full", "timed", "keys_with_room")}
    api.pause("paused")
    for name in limits:
        assert go(waiting(name)) == []
    assert recover.ask_sweep_keys(0, 100).row() == recover.Swept(stranded=[], last=0)
    finish.complete(running["keys_with_room"].id, ticket_of(running["keys_with_room"]), result=None)
    finish.complete(running["timed"].id, ticket_of(running["timed"]), result=None)
    assert recover.ask_sweep_keys(0, 100).row() == recover.Swept(stranded=[keys["keys_with_room"].id], last=0)
    assert recover.ask_sweep_keys(0, 2).row() == recover.Swept(stranded=[], last=keys["paused"].id)
    assert recover.ask_sweep_keys(keys["paused"].id, 100).row().stranded == [keys["keys_with_room"].id]


def test_the_sweep_leaves_alone_a_key_with_too_little_room_for_the_dear_call_in_front() -> None:
    row = key("api", concurrency=3)
    first, second = started("api"), started("api")
    dear = waiting(costs={"api": 2})
    assert go(dear) == []
    assert engine.sweep() == 0
    finish.complete(first.id, ticket_of(first), result=None)
    finish.complete(second.id, ticket_of(second), result=None)
    assert recover.ask_sweep_keys(0, 100).row().stranded == [row.id]


def test_the_sweep_leaves_an_override_that_has_run_out_to_the_tick() -> None:
    key("api")
    api.override("api", until=timezone.now() + timedelta(hours=1), concurrency=0)
    call = waiting("api")
    assert go(call, now=timezone.now()) == []
    RateLimitKey.objects.update(override_until=timezone.now() - timedelta(seconds=1))
    assert engine.sweep() == 0
    assert engine.tick() == 1
    assert states([call]) == [State.DISPATCHED]


def test_a_tick_serves_what_the_sweep_found() -> None:
    calls = [waiting(queue=name) for name in "abc"]
    engine.tick(now=at(1))
    assert states(calls) == [State.DISPATCHED] * 3


# Windows


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


def test_nothing_is_recovered_from_nothing() -> None:
    assert engine.recover(now=at(1)) == 0
    assert engine.sweep() == 0
    assert not CallQueue.objects.exists()
