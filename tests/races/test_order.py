"""Invariant 5: a lane is first in, first out; of one key the higher priority goes first; no call overtakes another."""

import pytest

from dispatcher import engine
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.states import State
from tests.races.audit import audit
from tests.races.lockstep import actors, concurrent, gated
from tests.races.traffic import in_flight, state_of

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
