"""Removing what is unused never takes a lane or a key that is used at the same moment, and no caller fails."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from django.db import transaction
from pytest_django import Settings

from dispatcher import api, engine, lanes
from dispatcher.errors import KeyNotFound
from dispatcher.lifecycle.retention import unused
from dispatcher.lifecycle.run import RetryAsked
from dispatcher.models import CallQueue, Lane, RateLimitKey
from dispatcher.request import Call, Changes
from dispatcher.states import OnLimit, State
from tests.builders import erase, ticket_of
from tests.races.audit import audit
from tests.races.lockstep import Actor, actors, at_once, concurrent, holding
from tests.races.traffic import in_flight

if TYPE_CHECKING:
    from concurrent.futures import Future

pytestmark = concurrent

STOP_LANES = "LOCK TABLE dispatcher_lane IN SHARE MODE"
"""Holding this stops a removal of lanes that has locked them, before it deletes them."""
STOP_KEYS = "LOCK TABLE dispatcher_ratelimitkey IN SHARE MODE"
"""And this one of keys."""


@pytest.fixture(autouse=True)
def _templates(settings: Settings) -> None:
    settings.DISPATCHER = {"keys": {"tenant:*": {"concurrency": 2}}, "unused_retention": timedelta(0)}


def send(name: str = "tenant:a") -> CallQueue:
    return CallQueue.objects.send("noop", keys=[name])


def send_within(name: str = "tenant:a") -> CallQueue:
    with transaction.atomic():
        return send(name)


def send_two(name: str = "tenant:a") -> CallQueue:
    return CallQueue.objects.send_many([Call(task="noop", keys=[name])] * 2)[0]


every_sender = pytest.mark.parametrize("sends", [send, send_within, send_two])


def leave(name: str = "tenant:a") -> int:
    """Leave a lane that had a call once; return its id."""
    call = send(name)
    api.cancel([call.id])
    erase(call)
    assert call.lane_id is not None
    return call.lane_id


def key_id(name: str = "tenant:a") -> int:
    return RateLimitKey.objects.get(name=name).id


def remove_all() -> tuple[int, int]:
    return unused.remove_lanes(), unused.remove_keys()


@contextmanager
def removing_keys() -> Iterator[tuple[Actor, psycopg.Connection[Any], "Future[int]"]]:
    """Give a person, and a removal of keys that has locked them and waits for the gate to delete them."""
    with actors(2) as (person, cleaner), holding(STOP_KEYS) as gate:
        removing = cleaner.begin(unused.remove_keys)
        cleaner.wait_blocked(by=gate)
        yield person, gate, removing


def assert_started(call: CallQueue) -> None:
    engine.tick()
    call.refresh_from_db()
    assert call.state == State.DISPATCHED
    lane = Lane.objects.get(id=call.lane_id)
    assert lane.key_ids == [key_id()]
    audit(has_ended=False)


@every_sender
def test_a_sender_that_comes_while_its_lane_is_removed_makes_it_again(sends: Callable[[], CallQueue]) -> None:
    lane = leave()
    with actors(2) as (sender, cleaner), holding(STOP_LANES) as gate:
        removing = cleaner.begin(unused.remove_lanes)
        cleaner.wait_blocked(by=gate)
        sending = sender.begin(sends)
        sender.wait_blocked_or_done(sending)
        gate.rollback()
        # The lane that is made again has no call for a moment; with nothing kept it may go, too.
        assert removing.result() in {1, 2}
        call = sending.result()
    assert not Lane.objects.filter(id=lane).exists()
    assert_started(call)


@every_sender
def test_a_sender_that_comes_while_its_key_is_removed_makes_it_again(sends: Callable[[], CallQueue]) -> None:
    leave()
    unused.remove_lanes()
    key = key_id()
    with removing_keys() as (sender, gate, removing):
        sending = sender.begin(sends)
        sender.wait_blocked_or_done(sending)
        gate.rollback()
        assert removing.result() == 1
        call = sending.result()
    assert_started(call)
    assert key_id() != key


@every_sender
def test_what_an_open_transaction_has_sent_to_stays(sends: Callable[[], CallQueue]) -> None:
    lane = leave()
    with actors(1) as (sender,):
        sender.open()
        call = sender.do(sends)
        assert remove_all() == (0, 0)
        sender.commit()
    assert remove_all() == (0, 0)
    assert call.lane_id == lane
    assert_started(call)


def test_a_key_stays_that_an_open_transaction_makes_a_lane_of() -> None:
    leave()
    unused.remove_lanes()
    kind = lanes.Kind(queue="celery", priority=0, on_limit=OnLimit.WAIT, names=("tenant:a",))
    with actors(1) as (sender,):
        sender.open()
        sender.do(lanes.make_lanes, {kind: 0})
        assert unused.remove_keys() == 0
        sender.commit()
    assert unused.remove_keys() == 0
    assert Lane.objects.get().key_ids == [key_id()]


def test_who_declares_a_key_that_is_being_removed_makes_it() -> None:
    leave()
    unused.remove_lanes()
    with removing_keys() as (person, gate, removing):
        declaring = person.begin(partial(RateLimitKey.objects.declare, "tenant:a", concurrency=7))
        person.wait_blocked(by=gate)
        gate.rollback()
        assert removing.result() == 1
        assert declaring.result().concurrency == 7
    assert unused.remove_keys() == 0


def test_who_limits_a_key_that_is_being_removed_gets_an_error_that_it_is_gone() -> None:
    leave()
    unused.remove_lanes()
    with removing_keys() as (person, gate, removing):
        limiting = person.begin(api.limit, "tenant:a", {"concurrency": 7})
        person.wait_blocked(by=gate)
        gate.rollback()
        assert removing.result() == 1
        with pytest.raises(KeyNotFound):
            limiting.result()


def test_a_retry_that_moves_its_call_to_a_lane_that_is_removed_makes_it_again() -> None:
    (call,) = in_flight("tenant:a")
    moved = CallQueue.objects.send("noop", keys=["tenant:a"], queue="mail")
    api.cancel([moved.id])
    erase(moved)

    def task() -> None:
        raise RetryAsked(None, timedelta(0), may_retry=True, changes=Changes(queue="mail"))

    lane = [moved.lane_id]
    with actors(1) as (worker,), holding("SELECT FROM dispatcher_lane WHERE id = %s FOR UPDATE", lane) as removal:
        running = worker.begin(engine.execute, call.id, ticket_of(call), task)
        worker.wait_blocked_or_done(running)
        removal.execute("DELETE FROM dispatcher_lane WHERE id = %s", lane)
        removal.commit()
        running.result()
    engine.tick()
    call.refresh_from_db()
    assert Lane.objects.get(id=call.lane_id).queue == call.queue == "mail"
    assert call.lane_id != moved.lane_id


def test_senders_beside_removals_lose_nothing_and_fail_nowhere() -> None:
    names = [f"tenant:{number}" for number in range(3)]
    rounds = 15

    def send_and_leave(sends: Callable[[str], CallQueue]) -> list[CallQueue]:
        kept = []
        for turn in range(rounds):
            call = sends(names[turn % 3])
            if turn < rounds - 3:
                api.cancel([call.id])
                CallQueue.objects.filter(id=call.id).delete()
            else:
                kept.append(call)
        return kept

    def clean() -> list[CallQueue]:
        for _ in range(2 * rounds):
            remove_all()
        return []

    sent = at_once(*[partial(send_and_leave, sends) for sends in (send, send_within, send, send_within)], clean, clean)
    while CallQueue.objects.filter(lane=None).exists():
        engine.tick()
    engine.tick()
    calls = {call.id for kept in sent for call in kept}
    assert set(CallQueue.objects.values_list("id", flat=True)) == calls
    assert CallQueue.objects.filter(state=State.DISPATCHED).count() == 6
    audit(has_ended=False)
