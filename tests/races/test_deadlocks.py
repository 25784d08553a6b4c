"""Locks are taken in one order everywhere, or not waited for: no combination has a deadlock victim."""

import pytest
from django.utils import timezone
from pytest_django import Settings

from dispatcher import api, engine
from dispatcher.errors import RateLimited
from dispatcher.lifecycle import admit, finish, publish
from dispatcher.lifecycle.claim import Claimed, claim
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.states import State
from tests.builders import renew
from tests.races.audit import audit
from tests.races.lockstep import STOP_PASSES, actors, concurrent, holding
from tests.races.traffic import in_flight, write

pytestmark = [concurrent, pytest.mark.server]


def test_a_provider_that_says_stop_does_not_deadlock_with_a_pass_over_its_lane() -> None:
    key = RateLimitKey.objects.declare("api", concurrency=9)
    (call,) = in_flight("api")
    write([["api"]])

    def stop() -> None:
        raise RateLimited(60)

    with actors(2) as (worker, dispenser):
        with holding("SELECT FROM dispatcher_ratelimitkey WHERE id = %s FOR NO KEY UPDATE", [key.id]) as gate:
            passing = dispenser.begin(engine.dispense, lanes=[call.lane_id])
            dispenser.wait_blocked(by=gate)
            stopping = worker.begin(engine.execute, call.id, call.ticket, stop)
            worker.wait_blocked(by=dispenser)
        assert passing.result() == 1
        stopping.result()
    assert CallQueue.objects.get(id=call.id).state == State.AVAILABLE
    audit(has_ended=False)


def test_noting_what_was_published_does_not_deadlock_with_a_cancel() -> None:
    low, high = write([[], []])
    CallQueue.objects.filter(id=high.id).update(position=0)
    admit.admit(lanes=[low.lane_id])
    calls = {call.id: call for call in CallQueue.objects.all()}
    with actors(2) as (admin, dispenser):
        with holding("SELECT FROM dispatcher_callqueue WHERE id = %s FOR NO KEY UPDATE", [low.id]) as gate:
            cancelling = admin.begin(api.cancel, [low.id, high.id])
            admin.wait_blocked(by=gate)
            publishing = dispenser.begin(publish.publish, [calls[high.id], calls[low.id]])
            dispenser.wait_blocked(by=gate)
        assert publishing.result() == 2
        assert cancelling.result() == [low.id, high.id]
    audit()


def test_an_end_whose_claim_was_lost_does_not_deadlock_with_a_claim(settings: Settings) -> None:
    settings.DISPATCHER = {"horizon": 60}
    # Another start has its place in the window: one part lasts for as long as the test may take.
    key = RateLimitKey.objects.declare("api", rate=(9, 86_400 * 300), throttle=(9, 1))
    first, lost, other = in_flight("api", count=3)
    claim(first.id, first.ticket)
    with actors(2) as (ender, claimer):
        with holding("SELECT FROM dispatcher_window WHERE key_id = %s FOR UPDATE", [key.id]) as gate:
            ending = ender.begin(finish.complete, lost.id, lost.ticket, result=None)
            ender.wait_blocked(by=gate)
            claiming = claimer.begin(claim, other.id, other.ticket)
            claimer.wait_blocked(by=ender)
        assert ending.result() is not None
        assert isinstance(claiming.result(), Claimed)
    assert CallQueue.objects.get(id=lost.id).state == State.COMPLETED


def test_a_heartbeat_does_not_deadlock_with_a_recovery(settings: Settings) -> None:
    settings.DISPATCHER = {"dispatch_lease": 0}
    RateLimitKey.objects.declare("api", concurrency=9)
    first, second = in_flight("api", count=2)
    held = [(call.id, call.ticket) for call in (second, first)]
    with actors(2) as (recovery, heart):
        with holding("SELECT FROM dispatcher_slot WHERE call_id = %s FOR NO KEY UPDATE", [first.id]) as gate:
            recovering = recovery.begin(engine.recover)
            recovery.wait_blocked(by=gate)
            beating = heart.begin(renew, held)
            heart.wait_blocked_or_done(beating)
        assert beating.result() + recovering.result() == 2
    audit(has_ended=False)


def test_a_pass_over_a_key_that_opened_for_no_lane_does_not_deadlock_with_another_pass() -> None:
    """The first pass holds the second key and has the first to forget; the other one comes the right way round."""
    first, second = (RateLimitKey.objects.declare(name, concurrency=0) for name in ("first", "second"))
    CallQueue.objects.send("noop", keys=["second"])
    RateLimitKey.objects.update(concurrency=9)
    RateLimitKey.objects.filter(id=first.id).update(opens_at=timezone.now())
    (both,) = write([["first", "second"]])
    with actors(2) as (ticker, dispenser):
        with holding(STOP_PASSES) as gate:
            ticking = ticker.begin(engine.dispense, keys=[first.id, second.id])
            ticker.wait_blocked(by=gate)
            passing = dispenser.begin(engine.dispense, lanes=[both.lane_id])
            dispenser.wait_blocked(by=ticker)
        assert ticking.result() + passing.result() == 2
    audit(has_ended=False)
