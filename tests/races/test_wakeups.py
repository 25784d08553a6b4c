"""Invariant 6: no wake-up is lost, whichever of two transactions commits last."""

from datetime import timedelta

import pytest
from django.db import transaction
from django.utils import timezone

from dispatcher import engine
from dispatcher.lifecycle import finish, recover, schedule
from dispatcher.lifecycle.claim import claim
from dispatcher.models import CallQueue, Lane, RateLimitKey
from dispatcher.states import State
from tests.races.audit import audit
from tests.races.lockstep import STOP_ADMISSIONS, STOP_PASSES, actors, concurrent, holding
from tests.races.traffic import in_flight, state_of

pytestmark = [concurrent, pytest.mark.server]


def test_a_send_to_a_parked_lane_that_a_pass_is_just_emptying_is_seen_by_the_pass() -> None:
    key = RateLimitKey.objects.declare("api", concurrency=1)
    (running,) = in_flight("api")
    waiting = CallQueue.objects.send("noop", keys=["api"])
    RateLimitKey.objects.filter(id=key.id).update(concurrency=3)
    with actors(1) as (dispenser,), holding(STOP_PASSES) as gate:
        passing = dispenser.begin(engine.dispense, keys=[key.id])
        dispenser.wait_blocked(by=gate)
        with transaction.atomic():
            late = CallQueue.objects.send("noop", keys=["api"])
        assert state_of(late) == State.AVAILABLE
        gate.rollback()
        assert passing.result() == 2
    assert {state_of(call) for call in (running, waiting, late)} == {State.DISPATCHED}
    audit(has_ended=False, limits_changed=True)


def test_a_lane_is_woken_that_was_parked_until_a_pass_has_just_emptied_it() -> None:
    key = RateLimitKey.objects.declare("api", concurrency=1)
    (running,) = in_flight("api")
    waiting = CallQueue.objects.send("noop", keys=["api"])
    claim(running.id, running.ticket)
    finish.complete(running.id, running.ticket, result=None)
    with actors(2) as (dispenser, waker), holding(STOP_ADMISSIONS) as gate:
        passing = dispenser.begin(engine.dispense, keys=[key.id])
        dispenser.wait_blocked(by=gate)
        waking = waker.begin(recover.wake, [waiting.lane_id])
        waker.wait_blocked(by=dispenser)
        gate.rollback()
        assert passing.result() == 1
        assert waking.result() == 1
    assert Lane.objects.get(id=waiting.lane_id).is_awake
    audit(has_ended=False)


def test_a_pass_that_comes_while_a_call_is_being_woken_leaves_the_lane_awake() -> None:
    scheduled = CallQueue.objects.send("noop", scheduled_at=timezone.now() + timedelta(hours=1))
    CallQueue.objects.update(scheduled_at=timezone.now())
    with actors(1) as (ticker,):
        ticker.open()
        assert ticker.do(schedule.wake_due) == 1
        assert engine.dispense(lanes=[scheduled.lane_id]) == 0
        ticker.commit()
    assert engine.dispense(awake=True) == 1
    assert state_of(scheduled) == State.DISPATCHED
    audit(has_ended=False)


def test_a_lane_that_its_queue_lets_go_meanwhile_is_left_to_the_next_pass() -> None:
    lane = CallQueue.objects.send("noop", keys=[RateLimitKey.objects.declare("api", concurrency=0).name]).lane
    Lane.objects.filter(id=lane.id).update(is_held=True, is_awake=False, parked_on=None)
    with actors(1) as (dispenser,), holding("UPDATE dispatcher_lane SET is_held = false") as step:
        deferring = dispenser.begin(recover.defer_lanes, [lane.id])
        dispenser.wait_blocked(by=step)
        step.commit()
        assert deferring.result() == 1
    lane.refresh_from_db()
    assert (lane.is_awake, lane.is_held) == (True, False)
