"""Invariant 5: a lane is first in, first out; in a queue the higher priority goes first; no call overtakes another."""

from functools import partial

import pytest
from django.db import transaction

from dispatcher import api, engine
from dispatcher.lifecycle import finish
from dispatcher.lifecycle.claim import claim
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.request import Call
from dispatcher.states import State
from tests.races.audit import audit
from tests.races.lockstep import actors, at_once, concurrent, holding
from tests.races.traffic import declare_tenants, in_flight, only_work, state_of

pytestmark = [concurrent, pytest.mark.server]


def end(call: CallQueue) -> None:
    """Run a call that was admitted, and hand its room on."""
    admitted = CallQueue.objects.get(id=call.id)
    assert admitted.state == State.DISPATCHED
    engine.execute(admitted.id, admitted.ticket, lambda: None)


@pytest.mark.parametrize("is_one_key", [True, False], ids=["the same keys", "other keys beside it"])
def test_of_two_sends_in_one_transaction_the_higher_priority_gets_the_only_room(*, is_one_key: bool) -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    declare_tenants(2)
    with transaction.atomic():
        low = CallQueue.objects.send("noop", keys=["api"] if is_one_key else ["api", "tenant:0"])
        high = CallQueue.objects.send("noop", keys=["api"] if is_one_key else ["api", "tenant:1"], priority=7)
    assert (state_of(low), state_of(high)) == (State.AVAILABLE, State.DISPATCHED)
    end(high)
    end(low)
    audit()


def test_a_higher_priority_sent_later_goes_before_all_that_wait() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    declare_tenants(8)
    (running,) = in_flight("api")
    low = CallQueue.objects.send_many([Call(task="noop", keys=["api", f"tenant:{number}"]) for number in range(8)])
    high = CallQueue.objects.send("noop", keys=["api"], priority=1)
    assert state_of(high) == State.AVAILABLE
    end(running)
    assert state_of(high) == State.DISPATCHED
    assert {state_of(call) for call in low} == {State.AVAILABLE}
    audit(has_ended=False)


def test_a_lower_priority_does_not_pass_a_higher_one_that_another_pass_is_about_to_serve() -> None:
    other = RateLimitKey.objects.declare("other")
    RateLimitKey.objects.declare("api", concurrency=1)
    (running,) = in_flight("api")
    claim(running.id, running.ticket)
    high = CallQueue.objects.send("noop", keys=["api", "other"], priority=5)
    released = finish.complete(running.id, running.ticket, result=None)
    with actors(1) as (worker,):
        # The pass that has taken the lane of the high call waits for another of its keys.
        with holding("SELECT FROM dispatcher_ratelimitkey WHERE id = %s FOR NO KEY UPDATE", [other.id]) as gate:
            handing_over = worker.begin(engine.hand_over, released.keys)
            worker.wait_blocked(by=gate)
            low = CallQueue.objects.send("noop", keys=["api"])
            assert state_of(low) == State.AVAILABLE
        assert handing_over.result() == 1
    assert (state_of(high), state_of(low)) == (State.DISPATCHED, State.AVAILABLE)
    end(high)
    assert state_of(low) == State.DISPATCHED
    audit(has_ended=False)


def test_a_newcomer_does_not_take_the_room_that_parked_lanes_wait_for() -> None:
    """The release has committed and its worker has not handed over yet: a send comes in between."""
    RateLimitKey.objects.declare("api", concurrency=1)
    declare_tenants(2)
    (running,) = in_flight("api")
    claim(running.id, running.ticket)
    parked = CallQueue.objects.send("noop", keys=["api", "tenant:0"])
    released = finish.complete(running.id, running.ticket, result=None)
    newcomer = CallQueue.objects.send("noop", keys=["api", "tenant:1"])
    assert (state_of(parked), state_of(newcomer)) == (State.DISPATCHED, State.AVAILABLE)
    assert engine.hand_over(released.keys) == 0
    audit(has_ended=False)


def test_sixteen_newcomers_at_once_stand_behind_the_calls_that_wait_for_their_key() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    declare_tenants(24)
    (running,) = in_flight("api")
    parked = CallQueue.objects.send_many([Call(task="noop", keys=["api", f"tenant:{number}"]) for number in range(8)])
    at_once(*[partial(CallQueue.objects.send, "noop", keys=["api", f"tenant:{number}"]) for number in range(8, 24)])
    end(running)
    for _ in range(8):
        (admitted,) = CallQueue.objects.filter(state=State.DISPATCHED)
        assert admitted.id in {call.id for call in parked}
        end(admitted)
    audit(has_ended=False)


def test_a_dear_call_is_not_passed_by_cheap_ones_of_the_same_priority() -> None:
    RateLimitKey.objects.declare("api", concurrency=4)
    declare_tenants(2)
    running = in_flight("api", count=4)
    dear = CallQueue.objects.send("noop", keys={"api": 3, "tenant:0": 1})
    cheap = CallQueue.objects.send_many([Call(task="noop", keys=["api", "tenant:1"])] * 4)
    for call in running[:2]:
        end(call)
        assert {state_of(each) for each in (dear, *cheap)} == {State.AVAILABLE}
    end(running[2])
    assert state_of(dear) == State.DISPATCHED
    assert {state_of(each) for each in cheap} == {State.AVAILABLE}
    audit(has_ended=False)


def test_lanes_that_share_a_key_take_turns_however_many_work_at_once() -> None:
    """One tenant floods, the other sends little: the little one is not behind the flood."""
    RateLimitKey.objects.declare("api", concurrency=1)
    declare_tenants(2)
    CallQueue.objects.send_many([Call(task="flood", keys=["api", "tenant:0"])] * 100)
    CallQueue.objects.send_many([Call(task="drip", keys=["api", "tenant:1"])] * 10)
    at_once(*[only_work] * 4)
    order = list(CallQueue.objects.order_by("started_at").values_list("task", flat=True))
    # In strict turns the last would be 20th; a lane that another worker's pass holds at the moment is skipped for once.
    assert max(place for place, task in enumerate(order) if task == "drip") <= 30
    audit(is_fifo=True)


def test_calls_put_back_go_before_those_sent_after_them() -> None:
    RateLimitKey.objects.declare("api", concurrency=2)
    first, second = in_flight("api", count=2)
    later = CallQueue.objects.send("noop", keys=["api"])
    api.pause("api")
    for call in (second, first):
        engine.execute(call.id, call.ticket, pytest.fail)
    api.resume("api")
    assert [state_of(call) for call in (first, second, later)] == [State.DISPATCHED, State.DISPATCHED, State.AVAILABLE]
    audit(has_ended=False)


def test_sends_of_one_transaction_are_served_once_however_many_there_were() -> None:
    RateLimitKey.objects.declare("api", concurrency=3)
    with actors(1) as (sender,):
        sender.open()
        calls = [sender.do(CallQueue.objects.send, "noop", keys=["api"], priority=number % 3) for number in range(9)]
        assert not CallQueue.objects.exists()
        sender.commit()
    assert [call.id for call in calls if state_of(call) == State.DISPATCHED] == [calls[place].id for place in (2, 5, 8)]
    audit(has_ended=False)
