"""Locks are taken in one order everywhere, or not waited for: no combination has a deadlock victim."""

from datetime import timedelta

import pytest
from django.utils import timezone
from pytest_django import Settings

from dispatcher import engine
from dispatcher.engine import ends
from dispatcher.errors import RateLimited
from dispatcher.lifecycle import publish
from dispatcher.lifecycle.claim import Claimed, claim
from dispatcher.lifecycle.take import Taker, take
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.states import State
from tests.builders import renew
from tests.races.audit import audit
from tests.races.lockstep import actors, concurrent, gated, holding
from tests.races.traffic import ended, in_flight, write

pytestmark = [concurrent, pytest.mark.server]

LOCK = "SELECT FROM dispatcher_callqueue WHERE id = %s FOR NO KEY UPDATE"


def test_a_provider_that_says_stop_does_not_deadlock_with_a_trip_over_its_lane() -> None:
    RateLimitKey.objects.declare("api", concurrency=9)
    (call,) = in_flight("api")
    write([["api"]])

    def stop() -> None:
        raise RateLimited(60)

    with actors(2) as (worker, dispenser):
        with gated("dispatcher_slot") as gate:
            dispensing = dispenser.begin(engine.dispense)
            dispenser.wait_blocked(by=gate)
            stopping = worker.begin(engine.execute, call.id, call.ticket, stop)
            worker.wait_blocked(by=dispenser)
        assert dispensing.result() == 1
        stopping.result()
    # Scheduled, where the key stayed locked for longer than the call waits for it: then its end blocks the key.
    assert CallQueue.objects.get(id=call.id).state in {State.AVAILABLE, State.SCHEDULED}
    audit(has_ended=False)


def test_noting_what_was_published_waits_for_no_cancel() -> None:
    (low, high), later = write([[], []]), timezone.now() + timedelta(hours=1)
    taker = Taker(queues=["celery"], becomes=State.DISPATCHED)
    assert len(take(taker, room=2).dispatched) == 2
    calls = {call.id: call for call in CallQueue.objects.all()}
    for one_or_both in ([calls[low.id]], [calls[high.id], calls[low.id]]):
        with actors(1) as (dispenser,), holding(LOCK, [low.id]):
            assert dispenser.do(publish.publish, one_or_both) == len(one_or_both)
    noted = CallQueue.objects.filter(published_at__isnull=False)
    assert [call.id for call in noted] == [high.id], "the other is published again, and its ticket is used once"
    assert {call.id for call in publish.unpublished(now=later)} == {low.id}
    audit(has_ended=False)


def test_publishing_again_waits_for_no_slot() -> None:
    (call,), later = write([[]]), timezone.now() + timedelta(hours=1)
    assert take(Taker(queues=["celery"], becomes=State.DISPATCHED), room=1).dispatched
    with actors(1) as (dispenser,), holding("SELECT FROM dispatcher_slot FOR UPDATE"):
        assert [each.id for each in dispenser.do(publish.unpublished, now=later)] == [call.id]
        CallQueue.objects.update(published_at=timezone.now())
        assert [each.id for each in dispenser.do(publish.to_repeat, now=later)] == [call.id]
    audit(has_ended=False)


def test_an_end_whose_claim_was_lost_does_not_deadlock_with_a_claim(settings: Settings) -> None:
    settings.DISPATCHER = {"horizon": 60}
    RateLimitKey.objects.declare("api", rate=(9, 3600), throttle=(9, 1))
    lost, other = in_flight("api", count=2)
    with actors(2) as (ender, claimer):
        with gated("dispatcher_start") as gate:
            ending = ender.begin(ends.record_one, ended(lost))
            ender.wait_blocked(by=gate)
            claiming = claimer.begin(claim, other.id, other.ticket)
            claimer.wait_blocked(by=ender)
        assert ending.result()
        assert isinstance(claiming.result(), Claimed)
    assert CallQueue.objects.get(id=lost.id).state == State.COMPLETED


def test_an_end_whose_claim_was_lost_is_recorded_beside_a_claim_of_its_key() -> None:
    RateLimitKey.objects.declare("api", rate=(9, 3600))
    lost, other = in_flight("api", count=2)
    with actors(2) as (ender, claimer):
        with gated("dispatcher_start") as gate:
            claiming = claimer.begin(claim, other.id, other.ticket)
            claimer.wait_blocked(by=gate)
            ending = ender.begin(ends.record_one, ended(lost))
            ender.wait_blocked(by=claimer)
        assert isinstance(claiming.result(), Claimed)
        assert ending.result()
    assert CallQueue.objects.get(id=lost.id).state == State.COMPLETED


def test_a_heartbeat_does_not_deadlock_with_a_recovery(settings: Settings) -> None:
    settings.DISPATCHER = {"dispatch_lease": 0}
    RateLimitKey.objects.declare("api", concurrency=9)
    first, second = in_flight("api", count=2)
    held = [(call.id, call.ticket) for call in (second, first)]
    with actors(2) as (recovery, heart):
        with holding("SELECT FROM dispatcher_slot WHERE call_id = %s FOR NO KEY UPDATE", [first.id]):
            recovering = recovery.begin(engine.recover)
            recovery.wait_blocked_or_done(recovering)
            beating = heart.begin(renew, held)
            heart.wait_blocked_or_done(beating)
        assert (beating.result(), recovering.result()) == (0, 1)
        # What somebody had locked was left to the next one; the other's lease is over again, as it began.
        assert engine.recover() == 2
    audit(has_ended=False)


def test_two_trips_whose_keys_are_locked_by_each_other_do_not_deadlock() -> None:
    """Each holds the key that its lane was parked on, and wants the other's."""
    for name in ("first", "second"):
        RateLimitKey.objects.declare(name, concurrency=1)
    held = {name: in_flight(name)[0] for name in ("first", "second")}
    for name, call in held.items():
        CallQueue.objects.send("noop", keys=[*held], queue=name)
        claim(call.id, call.ticket)
    with actors(2) as (one, two):
        for actor, name in ((one, "first"), (two, "second")):
            actor.open()
            actor.do(lock, name)
        ending = [
            actor.begin(ends.record_one, ended(call)) for actor, call in zip((one, two), held.values(), strict=True)
        ]
        assert [each.result() for each in ending] == [True, True]
        one.commit()
        two.commit()
    engine.tick()
    assert CallQueue.objects.filter(state=State.DISPATCHED).count() == 1
    audit(has_ended=False)


def lock(name: str) -> None:
    RateLimitKey.objects.select_for_update(no_key=True).get(name=name)
