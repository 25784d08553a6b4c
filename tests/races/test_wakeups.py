"""Invariant 6: no wake-up is lost, whichever of two transactions commits last."""

from datetime import timedelta
from functools import partial

import pytest
from django.db import transaction
from django.utils import timezone

from dispatcher import engine
from dispatcher.errors import RateLimited
from dispatcher.lifecycle import control, finish, recover, schedule
from dispatcher.lifecycle.claim import claim
from dispatcher.models import CallQueue, Lane, RateLimitKey
from dispatcher.request import Call
from dispatcher.states import State
from tests.races.audit import audit
from tests.races.lockstep import STOP_ADMISSIONS, STOP_PASSES, actors, at_once, concurrent, eventually, holding
from tests.races.traffic import declare_tenants, in_flight, only_work, state_of, write

pytestmark = [concurrent, pytest.mark.server]


def test_a_send_that_commits_while_a_pass_puts_its_lane_to_sleep_is_seen_by_the_pass() -> None:
    (first,) = in_flight()
    with actors(1) as (dispenser,), holding(STOP_PASSES) as gate:
        passing = dispenser.begin(engine.dispense, lanes=[first.lane_id])
        dispenser.wait_blocked(by=gate)
        with transaction.atomic():
            second = CallQueue.objects.send("noop")
        assert state_of(second) == State.AVAILABLE
        gate.rollback()
        assert passing.result() == 1
    assert state_of(second) == State.DISPATCHED
    audit(has_ended=False, is_fifo=True)


def test_a_send_that_commits_after_the_pass_looked_again_is_served_by_its_sender() -> None:
    (first,) = in_flight()
    with actors(1) as (sender,):
        sender.open()
        second = sender.do(CallQueue.objects.send, "noop")
        assert engine.dispense(lanes=[first.lane_id]) == 0
        assert not Lane.objects.get().is_awake
        sender.commit()
    assert state_of(second) == State.DISPATCHED
    audit(has_ended=False, is_fifo=True)


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


def test_a_call_whose_sender_died_after_the_commit_is_found_by_the_sweep() -> None:
    (call,) = write([[]])
    assert engine.dispense(awake=True) == 0
    assert engine.sweep() == 1
    assert engine.dispense(awake=True) == 1
    assert state_of(call) == State.DISPATCHED
    assert engine.sweep() == 0
    audit(has_ended=False)


def test_a_release_that_commits_while_a_pass_parks_a_lane_is_seen_by_the_pass() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    declare_tenants(1)
    (running,) = in_flight("api")
    claim(running.id, running.ticket)
    (waiting,) = write([["api", "tenant:0"]])
    with actors(1) as (sender,), holding(STOP_PASSES) as gate:
        passing = sender.begin(engine.dispense, lanes=[waiting.lane_id])
        sender.wait_blocked(by=gate)
        released = finish.complete(running.id, running.ticket, result=None)
        assert engine.hand_over(released.keys) == 0
        gate.rollback()
        assert passing.result() == 1
    assert state_of(waiting) == State.DISPATCHED
    audit(has_ended=False)


def test_a_release_that_commits_after_the_pass_looked_again_hands_over_itself() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    (running,) = in_flight("api")
    claim(running.id, running.ticket)
    with actors(1) as (worker,):
        worker.open()
        released = worker.do(finish.complete, running.id, running.ticket, result=None)
        waiting = CallQueue.objects.send("noop", keys=["api"])
        assert Lane.objects.get(id=waiting.lane_id).parked_on.name == "api"
        worker.commit()
        assert worker.do(engine.hand_over, released.keys) == 1
    assert state_of(waiting) == State.DISPATCHED
    audit(has_ended=False)


def test_a_cancel_that_commits_while_a_pass_parks_a_lane_is_seen_by_the_pass() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    declare_tenants(1)
    (admitted,) = in_flight("api")
    (waiting,) = write([["api", "tenant:0"]])
    with actors(1) as (sender,), holding(STOP_PASSES) as gate:
        passing = sender.begin(engine.dispense, lanes=[waiting.lane_id])
        sender.wait_blocked(by=gate)
        control.cancel([admitted.id])
        gate.rollback()
        assert passing.result() == 1
    assert state_of(waiting) == State.DISPATCHED
    audit(has_ended=False)


def test_a_call_whose_time_comes_while_a_pass_puts_its_lane_to_sleep_is_served() -> None:
    soon = timezone.now() + timedelta(milliseconds=1)
    scheduled = CallQueue.objects.send("noop", scheduled_at=timezone.now() + timedelta(hours=1))
    CallQueue.objects.update(scheduled_at=soon)
    with actors(2) as (dispenser, ticker), holding(STOP_ADMISSIONS) as gate:
        passing = dispenser.begin(engine.dispense, lanes=[scheduled.lane_id])
        dispenser.wait_blocked(by=gate)
        waking = ticker.begin(schedule.wake_due)
        ticker.wait_blocked(by=dispenser)
        gate.rollback()
        assert waking.result() == 1
        assert passing.result() + engine.dispense(awake=True) == 1
    audit(has_ended=False)


def test_a_lane_that_is_awake_is_woken_again_when_a_pass_is_just_putting_it_to_sleep() -> None:
    scheduled = CallQueue.objects.send("noop", scheduled_at=timezone.now() + timedelta(hours=1))
    CallQueue.objects.update(scheduled_at=timezone.now())
    recover.wake([scheduled.lane_id])
    with actors(2) as (dispenser, ticker), holding(STOP_ADMISSIONS) as gate:
        passing = dispenser.begin(engine.dispense, awake=True)
        dispenser.wait_blocked(by=gate)
        ticker.open()
        waking = ticker.begin(schedule.wake_due)
        ticker.wait_blocked(by=dispenser)
        gate.rollback()
        assert passing.result() == 0
        assert waking.result() == 1
        ticker.commit()
    assert engine.dispense(awake=True) == 1
    audit(has_ended=False)


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


def test_a_call_put_back_while_a_pass_puts_its_lane_to_sleep_is_served() -> None:
    (call,) = in_flight()
    with actors(2) as (dispenser, worker), holding(STOP_PASSES) as gate:
        passing = dispenser.begin(engine.dispense, lanes=[call.lane_id])
        dispenser.wait_blocked(by=gate)
        losing = worker.begin(engine.lose, call.id, call.ticket, TimeoutError(), is_crash=True)
        worker.wait_blocked(by=gate)
        gate.rollback()
        passing.result()
        assert losing.result()
    assert state_of(call) == State.DISPATCHED
    audit(has_ended=False)


def test_a_call_whose_provider_says_stop_is_served_when_the_block_ends() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    (call,) = in_flight("api")

    def stop() -> None:
        raise RateLimited(1)

    engine.execute(call.id, call.ticket, stop)
    audit(has_ended=False)
    eventually(lambda: engine.dispense(awake=True, keys=schedule.due_keys()) or state_of(call) == State.DISPATCHED)
    audit(has_ended=False)


def test_sixteen_senders_and_four_dispensers_leave_no_call_asleep() -> None:
    declare_tenants(4)

    def send(number: int) -> None:
        for turn in range(12):
            CallQueue.objects.send("noop", keys=[f"tenant:{(number + turn) % 4}"])

    def dispense() -> None:
        for _ in range(40):
            engine.dispense(lanes=Lane.objects.values_list("id", flat=True))

    at_once(*[partial(send, number) for number in range(16)], *[dispense] * 4)
    assert CallQueue.objects.filter(state=State.DISPATCHED).count() == 16 * 12
    audit(has_ended=False)


def test_a_backlog_drains_to_its_last_call_by_hand_over_alone() -> None:
    """Nothing ticks, sweeps or sends: only the workers' releases let the next calls in."""
    RateLimitKey.objects.declare("api", concurrency=3)
    declare_tenants(12)
    CallQueue.objects.send_many(Call(task="noop", keys=["api", f"tenant:{number % 12}"]) for number in range(240))
    at_once(*[only_work] * 6)
    audit(is_fifo=True)


@pytest.mark.slow
def test_hand_over_drains_calls_of_different_cost_under_several_keys() -> None:
    RateLimitKey.objects.declare("api", concurrency=4)
    RateLimitKey.objects.declare("other", concurrency=3)
    declare_tenants(6)
    CallQueue.objects.send_many(
        Call(
            task="noop",
            keys={
                "api": 1 + number % 4,
                f"tenant:{number % 6}": 1,
                **({"other": 1 + number % 3} if number % 2 else {}),
            },
        )
        for number in range(180)
    )
    at_once(*[only_work] * 6)
    audit(is_fifo=True)


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
