"""Invariant 5: a lane is first in, first out; of one key the higher priority goes first; no call overtakes another."""

from functools import partial

import pytest

from dispatcher import engine
from dispatcher.lifecycle.claim import claim
from dispatcher.lifecycle.take import Taker, take
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.request import Call
from dispatcher.states import State
from tests.races.audit import audit
from tests.races.lockstep import actors, at_once, concurrent, gated
from tests.races.traffic import declare_tenants, ended, in_flight, state_of

pytestmark = [concurrent, pytest.mark.server]


def end(call: CallQueue) -> None:
    """Run a call that was admitted, and let the next one go."""
    admitted = CallQueue.objects.get(id=call.id)
    assert admitted.state == State.DISPATCHED
    engine.execute(admitted.id, admitted.ticket, lambda: None)


def test_a_lower_priority_does_not_pass_a_higher_one_that_another_trip_is_about_to_dispatch() -> None:
    RateLimitKey.objects.declare("other")
    RateLimitKey.objects.declare("api", concurrency=1)
    (running,) = in_flight("api")
    high = CallQueue.objects.send("noop", keys=["api", "other"], priority=5)
    with actors(1) as (worker,):
        with gated("dispatcher_slot") as gate:
            ending = worker.begin(engine.execute, running.id, running.ticket, lambda: None)
            worker.wait_blocked(by=gate)
            low = CallQueue.objects.send("noop", keys=["api"])
            assert state_of(low) == State.AVAILABLE
        ending.result()
    assert (state_of(high), state_of(low)) == (State.DISPATCHED, State.AVAILABLE)
    end(high)
    assert state_of(low) == State.DISPATCHED
    audit(has_ended=False)


def test_a_newcomer_does_not_take_the_room_that_parked_lanes_wait_for() -> None:
    """The end has committed, and its worker is gone: a send comes next."""
    RateLimitKey.objects.declare("api", concurrency=1)
    declare_tenants(2)
    (running,) = in_flight("api")
    claim(running.id, running.ticket)
    parked = CallQueue.objects.send("noop", keys=["api", "tenant:0"])
    assert take(Taker(), [ended(running)]).ended
    newcomer = CallQueue.objects.send("noop", keys=["api", "tenant:1"])
    assert (state_of(parked), state_of(newcomer)) == (State.DISPATCHED, State.AVAILABLE)
    assert engine.dispense() == 0
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
