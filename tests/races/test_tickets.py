"""Invariants 2 and 3: one start per ticket, one end per call; a late or repeated message changes nothing."""

from functools import partial
from threading import Event
from uuid import UUID

import pytest
from pytest_django import Settings

from dispatcher import api, engine, sql
from dispatcher.lifecycle import finish, recover
from dispatcher.lifecycle.claim import Claimed, Refused, claim
from dispatcher.lifecycle.run import Returned
from dispatcher.models import CallQueue, RateLimitKey, Slot, Window
from dispatcher.request import Call
from dispatcher.states import State
from tests.builders import renew
from tests.races.audit import audit
from tests.races.lockstep import actors, at_once, concurrent
from tests.races.traffic import in_flight

pytestmark = [concurrent, pytest.mark.server]

LOST = TimeoutError("its worker is gone")


@pytest.fixture
def short_leases(settings: Settings) -> None:
    """Let what is admitted, or runs, be given up at once."""
    settings.DISPATCHER = {"dispatch_lease": 0, "run_lease": 0, "retry": {"initial_interval": 0}}


def test_of_sixteen_claims_with_one_ticket_exactly_one_wins() -> None:
    key = RateLimitKey.objects.declare("api", rate=(100, 3600), throttle=(1000, 1))
    for number in range(1, 11):
        (call,) = in_flight("api")
        outcomes = at_once(*[partial(claim, call.id, call.ticket)] * 16)
        assert sum(isinstance(outcome, Claimed) for outcome in outcomes) == 1
        assert outcomes.count(Refused.STALE) == 15
        assert CallQueue.objects.get(id=call.id).attempt == 1
        assert sum(Window.objects.filter(key=key).values_list("cost", flat=True)) == number
        finish.complete(call.id, call.ticket, result=None)
    audit()


@pytest.mark.parametrize(("first_commits", "second"), [(True, Refused.STALE), (False, Claimed)])
def test_a_claim_that_waited_for_another_sees_how_it_ended(*, first_commits: bool, second: object) -> None:
    (call,) = in_flight()
    with actors(2) as (first, other):
        first.open()
        assert isinstance(first.do(claim, call.id, call.ticket), Claimed)
        claiming = other.begin(claim, call.id, call.ticket)
        other.wait_blocked(by=first)
        (first.commit if first_commits else first.roll_back)()
        outcome = claiming.result()
    assert outcome is second or type(outcome) is second
    assert CallQueue.objects.get(id=call.id).attempt == 1
    audit(has_ended=False)


def test_of_sixteen_workers_with_one_message_exactly_one_runs_the_task() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    calls = in_flight("api") + CallQueue.objects.send_many([Call(task="noop", keys=["api"])] * 9)
    ran: list[UUID] = []
    for each in calls:
        call = CallQueue.objects.get(id=each.id)
        outcomes = at_once(*[partial(engine.execute, call.id, call.ticket, partial(ran.append, call.id))] * 16)
        assert [type(outcome) for outcome in outcomes if outcome is not Refused.STALE] == [Returned]
    assert ran == [call.id for call in calls]
    audit(is_fifo=True)


def test_a_late_delivery_does_not_take_the_call_from_the_ticket_that_is_valid_now(short_leases: None) -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    for _ in range(10):
        (call,) = in_flight("api")
        assert engine.recover() == 1
        now = CallQueue.objects.get(id=call.id)
        assert (now.state, now.attempt) == (State.DISPATCHED, 0)
        late, current = at_once(partial(claim, call.id, call.ticket), partial(claim, call.id, now.ticket))
        assert late is Refused.STALE
        assert isinstance(current, Claimed)
        finish.complete(call.id, now.ticket, result=None)
    audit()


def test_a_worker_that_was_refused_does_not_put_back_what_was_given_to_another(short_leases: None) -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    (call,) = in_flight("api")
    api.pause("api")
    assert claim(call.id, call.ticket) is Refused.KEY_CLOSED
    engine.recover()
    api.resume("api")
    now = CallQueue.objects.get(id=call.id)
    assert finish.put_back(call.id, call.ticket, from_states=[State.DISPATCHED, State.ACTIVE]) is None
    assert finish.expire(call.id, call.ticket) is None
    again = CallQueue.objects.get(id=call.id)
    assert (again.state, again.ticket) == (State.DISPATCHED, now.ticket)
    audit(has_ended=False)


def test_claim_and_recovery_never_both_have_a_call(settings: Settings) -> None:
    settings.DISPATCHER = {"dispatch_lease": 0}
    RateLimitKey.objects.declare("api", concurrency=1)
    for _ in range(20):
        (call,) = in_flight("api")
        outcome, recovered = at_once(partial(claim, call.id, call.ticket), engine.recover)
        now = CallQueue.objects.get(id=call.id)
        if isinstance(outcome, Claimed):
            assert (recovered, now.state, now.ticket, now.attempt) == (0, State.ACTIVE, call.ticket, 1)
        else:
            assert (recovered, now.state, now.attempt) == (1, State.DISPATCHED, 0)
            assert now.ticket != call.ticket
        audit(has_ended=False)
        finish.complete(now.id, now.ticket, result=None)
    audit()


def test_a_claim_that_waited_for_the_recovery_is_stale(short_leases: None) -> None:
    (call,) = in_flight()
    with actors(2) as (recovery, worker):
        recovery.open()
        assert [lost.call_id for lost in recovery.do(recover.expired)] == [call.id]
        claiming = worker.begin(claim, call.id, call.ticket)
        worker.wait_blocked(by=recovery)
        recovery.do(finish.put_back, call.id, call.ticket, from_states=[State.DISPATCHED])
        recovery.commit()
        assert claiming.result() is Refused.STALE
    engine.dispense(lanes=[call.lane_id])
    again = CallQueue.objects.get(id=call.id)
    assert (again.state, again.attempt) == (State.DISPATCHED, 0)
    assert again.ticket != call.ticket
    audit(has_ended=False)


def test_a_recovery_leaves_a_call_alone_that_is_being_claimed(short_leases: None) -> None:
    (call,) = in_flight()
    with actors(1) as (worker,):
        worker.open()
        worker.do(claim, call.id, call.ticket)
        assert engine.recover() == 0
        worker.commit()
    assert CallQueue.objects.get(id=call.id).state == State.ACTIVE
    audit(has_ended=False)


def test_finish_and_recovery_never_both_end_an_attempt(short_leases: None) -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    for _ in range(20):
        (call,) = in_flight("api")
        claim(call.id, call.ticket)
        released, recovered = at_once(partial(finish.complete, call.id, call.ticket, result="done"), engine.recover)
        now = CallQueue.objects.get(id=call.id)
        if released is None:
            assert (recovered, now.state, now.result) == (1, State.RETRYABLE, None)
            assert now.error["type"] == "WorkerLost"
        else:
            assert (recovered, now.state, now.result) == (0, State.COMPLETED, "done")
        assert (now.attempt, Slot.objects.count()) == (1, 0)
        api.cancel([call.id])
    audit()


def test_a_finish_that_waited_for_the_recovery_is_dropped(short_leases: None) -> None:
    (call,) = in_flight()
    claim(call.id, call.ticket)
    with actors(2) as (recovery, worker):
        recovery.open()
        assert [lost.call_id for lost in recovery.do(recover.expired)] == [call.id]
        finishing = worker.begin(finish.complete, call.id, call.ticket, result="late")
        worker.wait_blocked(by=recovery)
        recovery.do(finish.fail, call.id, call.ticket, error=LOST, attempt=1, policy=None)
        recovery.commit()
        assert finishing.result() is None
    now = CallQueue.objects.get(id=call.id)
    assert (now.state, now.result, now.error["type"]) == (State.RETRYABLE, None, "TimeoutError")
    audit(has_ended=False)


def test_a_zombie_that_wakes_up_after_its_call_was_given_to_another_changes_nothing(short_leases: None) -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    (call,) = in_flight("api")
    has_begun, may_end = Event(), Event()

    def hang() -> str:
        has_begun.set()
        may_end.wait(20)
        return "zombie"

    with actors(1) as (zombie,):
        running = zombie.begin(engine.execute, call.id, call.ticket, hang)
        assert has_begun.wait(20)
        assert engine.recover() == 1
        api.run_now([call.id])
        second = CallQueue.objects.get(id=call.id)
        assert isinstance(claim(second.id, second.ticket), Claimed)
        may_end.set()
        assert running.result(20) is None
    assert renew([(call.id, call.ticket)]) == 0
    now = CallQueue.objects.get(id=call.id)
    assert (now.state, now.ticket, now.attempt) == (State.ACTIVE, second.ticket, 2)
    assert Slot.objects.count() == 1
    finish.complete(second.id, second.ticket, result="second")
    assert CallQueue.objects.get(id=call.id).result == "second"
    audit()


def test_of_a_finish_with_the_old_ticket_and_one_with_the_new_only_the_new_counts(short_leases: None) -> None:
    for _ in range(10):
        (call,) = in_flight()
        claim(call.id, call.ticket)
        engine.recover()
        api.run_now([call.id])
        second = CallQueue.objects.get(id=call.id)
        claim(second.id, second.ticket)
        late, current = at_once(
            partial(finish.complete, call.id, call.ticket, result="late"),
            partial(finish.complete, call.id, second.ticket, result="current"),
        )
        assert late is None
        assert current is not None
        assert CallQueue.objects.get(id=call.id).result == "current"
    audit()


def test_a_heartbeat_that_came_in_between_saves_the_call(settings: Settings) -> None:
    settings.DISPATCHER = {"dispatch_lease": 0}
    RateLimitKey.objects.declare("api", concurrency=1)
    (call,) = in_flight("api")
    with actors(2) as (heart, recovery):
        heart.open()
        assert heart.do(renew, [(call.id, call.ticket)]) == 1
        recovering = recovery.begin(engine.recover)
        recovery.wait_blocked(by=heart)
        heart.commit()
        assert recovering.result() == 0
    assert CallQueue.objects.get(id=call.id).ticket == call.ticket
    audit(has_ended=False)


def test_a_heartbeat_that_comes_after_the_recovery_renews_nothing(short_leases: None) -> None:
    (call,) = in_flight()
    with actors(2) as (recovery, heart):
        recovery.open()
        recovery.do(recover.expired)
        assert heart.do(renew, [(call.id, call.ticket)]) == 0
        recovery.do(finish.put_back, call.id, call.ticket, from_states=[State.DISPATCHED])
        recovery.commit()
        assert heart.do(renew, [(call.id, call.ticket)]) == 0
    engine.dispense(lanes=[call.lane_id])
    audit(has_ended=False)


def test_sixteen_recoveries_at_once_put_each_call_back_once(short_leases: None) -> None:
    RateLimitKey.objects.declare("api", concurrency=40)
    calls = in_flight("api", count=40)
    for call in calls[:20]:
        claim(call.id, call.ticket)
    assert sum(at_once(*[partial(_put_back_lost, [call.id for call in calls])] * 16)) == 40
    assert {call.attempt for call in CallQueue.objects.filter(id__in=[call.id for call in calls[:20]])} == {1}
    assert {call.attempt for call in CallQueue.objects.filter(id__in=[call.id for call in calls[20:]])} == {0}
    engine.dispense(lanes=[calls[0].lane_id])
    audit(has_ended=False)


def _put_back_lost(calls: list[UUID]) -> int:
    """Put back those of these calls that are lost now, once; unlike the engine, dispense nothing after it."""
    with sql.atomic():
        lost = [call for call in recover.expired() if call.call_id in calls]
        released = [
            finish.put_back(call.call_id, call.ticket, from_states=[State.DISPATCHED])
            or finish.fail(call.call_id, call.ticket, error=LOST, attempt=1, policy=None)
            for call in lost
        ]
    return sum(each is not None for each in released)
