"""Trips of direct workers, in every order against what others do: no limit broken, no call lost, none started twice."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from dispatcher import api, ending, engine
from dispatcher.engine import direct
from dispatcher.lifecycle import control, finish
from dispatcher.lifecycle.finish import Ended
from dispatcher.lifecycle.take import Start, Taken, Taker
from dispatcher.models import CallQueue, Queue, RateLimitKey, Slot
from dispatcher.states import State
from tests.interleavings.actions import come_along, give_up, let_leases_run_out, slowly
from tests.interleavings.stepper import explore
from tests.races.lockstep import concurrent

pytestmark = concurrent

ONE, OTHER = (Taker(worker=uuid4(), queues=["mail"], tasks=["noop"]) for _ in range(2))


@pytest.fixture(autouse=True)
def _direct(db: None) -> None:
    Queue.objects.create(name="mail", delivery="direct")


def send(*keys: str, **fields: Any) -> CallQueue:
    return CallQueue.objects.send("noop", queue="mail", keys=keys, **fields)


def take(taker: Taker = ONE, *ended: Start, room: int = 2) -> Taken:
    """Make a trip whose locks are held up to its commit."""
    return slowly(lambda: direct.step(taker, [end_of(start) for start in ended], room=room))


def end_of(start: Start) -> Ended:
    return start.ended(ending.completed(1))


def taken() -> Start:
    (start,) = take(room=1).starts
    return start


def ids(*trips: Taken) -> list[Any]:
    return sorted(start.call.id for trip in trips for start in trip.starts)


def rest(taker: Taker = OTHER) -> list[Any]:
    """Take what is left, as an idle worker does when it comes again: none needs the sweep of a tick."""
    come_along()
    return [start.call.id for _ in range(3) for start in direct.step(taker, room=9).starts]


def started(call: CallQueue) -> bool:
    """Whether a call runs, with the slots that it should have."""
    row = CallQueue.objects.get(id=call.id)
    assert (row.state == State.ACTIVE) == Slot.objects.filter(call=call).exists()
    return row.state == State.ACTIVE


def test_trips_of_two_workers_and_two_calls_of_one_lane() -> None:
    calls = [send(), send()]

    def each_started_once(*trips: Taken) -> None:
        assert sorted([*ids(*trips), *rest()]) == sorted(call.id for call in calls)
        assert set(CallQueue.objects.values_list("attempt", flat=True)) == {1}

    explore({"one": partial(take, ONE, room=1), "other": partial(take, OTHER, room=1)}, each_started_once, at_least=10)


def test_a_trip_that_ends_a_call_and_the_trip_of_another_worker() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    first, second = send("api"), send("api")
    start = taken()
    assert start.call.id == first.id

    def the_second_started(*trips: Taken) -> None:
        assert [*ids(*trips), *rest()] == [second.id]
        assert CallQueue.objects.get(id=first.id).state == State.COMPLETED

    explore({"one": partial(take, ONE, start), "other": partial(take, OTHER)}, the_second_started, at_least=10)


def test_a_trip_and_a_cancel() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    call, behind = send("api"), send("api")

    def cancelled_or_started(trip: Taken, cancelled: list[Any]) -> None:
        assert ([call.id] == cancelled) is not started(call)
        assert [*ids(trip), *rest()] == [behind.id if cancelled else call.id]

    explore({"worker": take, "caller": partial(api.cancel, [call.id])}, cancelled_or_started, at_least=10)


CLOSINGS: dict[str, Callable[[], Any]] = {
    "pause": partial(control.pause, "api"),
    "block": partial(control.block, timedelta(hours=1), names=["api"]),
    "limit": partial(control.limit, "api", {"concurrency": 0}),
}


@pytest.mark.parametrize("kind", [{"concurrency": 2}, {"throttle": (1000, 1)}], ids=["plain", "throttled"])
@pytest.mark.parametrize("verb", CLOSINGS)
def test_a_trip_and_a_closing(verb: str, kind: dict[str, Any]) -> None:
    RateLimitKey.objects.declare("api", **kind)
    call = send("api")

    def is_closed() -> bool:
        key = RateLimitKey.objects.get(name="api")
        return key.is_paused or key.blocked_until is not None or key.concurrency == 0

    def look_and_take() -> tuple[bool, Taken]:
        return is_closed(), take()

    def nothing_starts_late(_: None, looked: tuple[bool, Taken]) -> None:
        was_closed, trip = looked
        assert started(call) == bool(trip.starts)
        assert not (was_closed and trip.starts)
        assert rest() == []
        if not trip.starts:
            row = CallQueue.objects.get(id=call.id)
            assert (row.state, row.attempt, row.ticket) == (State.AVAILABLE, 0, None)

    explore({"admin": CLOSINGS[verb], "worker": look_and_take}, nothing_starts_late, at_least=5, limits_changed=True)


def test_a_trip_that_ends_a_call_and_its_recovery() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    call = send("api", retry={"max_attempts": 3, "initial_interval": 1, "jitter": False})
    start = taken()
    let_leases_run_out()

    def it_ended_once(trip: Taken, lost: int) -> None:
        row = CallQueue.objects.get(id=call.id)
        assert (list(trip.ended), lost) in [([call.id], 0), ([], 1)]
        assert row.state == (State.RETRYABLE if lost else State.COMPLETED)
        assert not Slot.objects.all()

    explore({"worker": partial(take, ONE, start), "recovery": give_up}, it_ended_once, at_least=5)


def test_a_call_that_is_given_back_and_a_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finish, "LOCK_WAIT", timedelta(seconds=5))
    RateLimitKey.objects.declare("api", concurrency=1)
    call = send("api", retry={"max_attempts": 3, "initial_interval": 1, "jitter": False})
    start = taken()
    let_leases_run_out()

    def it_waits_once(_: None, lost: int) -> None:
        row = CallQueue.objects.get(id=call.id)
        assert (row.state, row.attempt) == ((State.RETRYABLE, 1) if lost else (State.AVAILABLE, 0))
        assert rest() == ([] if lost else [call.id])

    explore(
        {"worker": partial(direct.give_back, [(start.call.id, start.call.ticket)]), "recovery": give_up},
        it_waits_once,
        at_least=5,
    )


@pytest.mark.parametrize("delivery", ["broker", "direct"])
def test_a_trip_and_a_change_of_the_delivery(delivery: str) -> None:
    Queue.objects.update(delivery="broker" if delivery == "direct" else "direct")
    RateLimitKey.objects.declare("api", concurrency=1)
    call = send("api")
    if delivery == "direct":
        engine.dispense()

    def change() -> None:
        Queue.objects.update(delivery=delivery)

    def it_is_started_by_one(trip: Taken, _: None) -> None:
        engine.tick()
        row = CallQueue.objects.get(id=call.id)
        assert row.state in (State.ACTIVE, State.DISPATCHED) or delivery == "direct"
        assert len([*ids(trip), *rest()]) + (row.state == State.DISPATCHED) == 1
        assert Slot.objects.count() == 1

    explore({"worker": take, "admin": change}, it_is_started_by_one, at_least=3)
