"""What a pass takes is bounded, whatever there is; the order of service is the same as without a bound."""

from dataclasses import replace
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction
from django.utils import timezone

from dispatcher import api, engine
from dispatcher.lifecycle import admit, control, heartbeat, recover
from dispatcher.models import CallQueue, Lane, RateLimitKey
from dispatcher.request import Call
from dispatcher.states import State
from tests.builders import HERE, T0, at, committed, dispatched, end, go, key, seen, start, states, waiting

pytestmark = committed


def parked(name: str, lanes: int, priority: int = 0) -> list[CallQueue]:
    """Return calls that wait in so many lanes, all parked on this key, which lets nothing start."""
    key(name, concurrency=0)
    calls = []
    for number in range(lanes):
        key(f"{name}:{number}")
        calls.append(waiting(name, f"{name}:{number}", priority=priority))
    assert go(*calls) == []
    assert Lane.objects.filter(parked_on__name=name).count() == lanes
    return calls


def free_calls() -> int:
    """Return how many waiting calls are not locked."""
    with psycopg.connect(**connection.get_connection_params()) as other:
        found = other.execute(
            "SELECT FROM dispatcher_callqueue WHERE state = 'available' FOR NO KEY UPDATE SKIP LOCKED"
        ).fetchall()
        other.rollback()
    return len(found)


# The calls at the head of a lane


def test_a_pass_locks_few_more_calls_than_may_go() -> None:
    key("api", concurrency=1)
    calls = CallQueue.objects.send_many([Call(task="noop", keys=["api"])] * 300)
    end(calls[0])
    with transaction.atomic():
        assert len(admit.admit(lanes=[calls[0].lane_id]).calls) == 1
        assert free_calls() >= 300 - 40


def test_a_pass_reads_on_where_all_that_it_has_read_may_go() -> None:
    calls = [waiting() for _ in range(50)]
    assert go(*calls) == [call.id for call in calls]


def test_a_pass_drops_all_that_the_limit_stops() -> None:
    key("api", concurrency=1)
    calls = [waiting("api", on_limit="drop") for _ in range(50)]
    assert go(*calls) == [calls[0].id]
    assert states(calls) == [State.DISPATCHED] + [State.DISCARDED] * 49


# Lanes


def test_keys_that_open_together_share_the_lanes_of_a_pass(settings: Any) -> None:
    settings.DISPATCHER = {"lanes_per_pass": 6}
    keys = ["a", "b", "c"]
    for name in keys:
        parked(name, 5)
    RateLimitKey.objects.update(concurrency=None)
    made = admit.admit(keys=RateLimitKey.objects.filter(name__in=keys).values_list("id", flat=True), now=T0)
    assert len(made.calls) == 6
    left = Lane.objects.filter(parked_on__isnull=False).values_list("parked_on__name", flat=True)
    assert sorted(left) == ["a"] * 3 + ["b"] * 3 + ["c"] * 3


def test_all_lanes_of_keys_that_open_together_are_served_in_the_end(settings: Any) -> None:
    settings.DISPATCHER = {"lanes_per_pass": 2}
    calls = [call for name in "abc" for call in parked(name, 5)]
    RateLimitKey.objects.update(concurrency=None)
    ids = RateLimitKey.objects.filter(name__in="abc").values_list("id", flat=True)
    assert engine.dispense(keys=ids, now=T0) == 15
    assert set(states(calls)) == {State.DISPATCHED}


def test_lanes_of_a_higher_priority_go_first_however_many_are_named(settings: Any) -> None:
    settings.DISPATCHER = {"lanes_per_pass": 2}
    key("api", concurrency=3)
    tenants = [key(f"tenant:{number}").name for number in range(7)]
    calls = CallQueue.objects.send_many(
        [Call(task="noop", keys=["api", name], priority=number) for number, name in enumerate(tenants)]
    )
    assert [call.priority for call in calls if seen(call).state == State.DISPATCHED] == [4, 5, 6]


def test_a_sender_leaves_the_lanes_that_it_does_not_serve_to_the_tick(settings: Any) -> None:
    settings.DISPATCHER = {"lanes_per_pass": 4}
    tenants = [key(f"tenant:{number}").name for number in range(60)]
    calls = CallQueue.objects.send_many([Call(task="noop", keys=[name]) for name in tenants])
    assert 0 < dispatched() < 60
    assert Lane.objects.filter(is_awake=True).count() >= 60 - dispatched()
    engine.tick(now=timezone.now())
    assert set(states(calls)) == {State.DISPATCHED}


def test_lanes_that_are_awake_and_empty_do_not_keep_a_tick_from_the_others(settings: Any) -> None:
    settings.DISPATCHER = {"lanes_per_pass": 2}
    for number in range(20):
        empty = waiting(queue=f"empty{number}")
        recover.wake([empty.lane_id])
        control.cancel([empty.id])
    call = waiting()
    recover.wake([call.lane_id])
    assert engine.tick(now=at(0)) == 1
    assert not Lane.objects.filter(is_awake=True).exists()


def test_all_lanes_that_a_queue_has_held_go_on_in_one_tick(settings: Any) -> None:
    settings.DISPATCHER = {"lanes_per_pass": 2, "queue_grace": 30}
    calls = [CallQueue.objects.send("noop", keys=[key(f"tenant:{number}").name], queue="late") for number in range(7)]
    assert Lane.objects.filter(is_held=True).count() == 7
    heartbeat.record(replace(HERE, queues=["late"]), [])
    assert engine.tick(now=timezone.now()) == 7
    assert set(states(calls)) == {State.DISPATCHED}


# What people do


@pytest.mark.parametrize("verb", ["limit", "override", "resume"])
def test_an_order_lets_some_go_and_leaves_the_others_to_the_tick(verb: str) -> None:
    calls = parked("api", 130)
    match verb:
        case "limit":
            api.limit("api", {})
        case "override":
            api.override("api", until=at(60), concurrency=1_000)
        case "resume":
            api.pause("api")
            RateLimitKey.objects.filter(name="api").update(concurrency=None)
            api.resume("api")
    assert 0 < dispatched() <= 100
    engine.tick(now=timezone.now())
    assert set(states(calls)) == {State.DISPATCHED}


def test_what_an_order_leaves_goes_on_by_hand_over_alone() -> None:
    calls = parked("api", 130)
    api.limit("api", {"concurrency": 60})
    for _ in range(130):
        running = CallQueue.objects.in_flight().first()
        if running is None:
            break
        start(running, now=timezone.now())
        end(running)
        engine.hand_over([RateLimitKey.objects.get(name="api").id])
    assert set(states(calls)) == {State.COMPLETED}


def test_where_tasks_run_in_the_sender_s_process_an_order_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = parked("api", 130)
    monkeypatch.setattr("dispatcher.engine.dispenser.is_eager", lambda: True)
    api.limit("api", {})
    assert set(states(calls)) == {State.DISPATCHED}
