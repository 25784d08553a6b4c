"""Invariant 5: a lane is first in, first out; in a queue the higher priority goes first; no call overtakes another."""

from functools import partial

import pytest

from dispatcher import engine
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.request import Call
from dispatcher.states import State
from tests.races.audit import audit
from tests.races.lockstep import at_once, concurrent
from tests.races.traffic import declare_tenants, in_flight

pytestmark = [concurrent, pytest.mark.server]


def end(call: CallQueue) -> None:
    """Run a call that was admitted, and hand its room on."""
    admitted = CallQueue.objects.get(id=call.id)
    assert admitted.state == State.DISPATCHED
    engine.execute(admitted.id, admitted.ticket, lambda: None)


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
