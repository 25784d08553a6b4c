"""Invariants 2 and 3: one start per ticket, one end per call; a late or repeated message changes nothing."""

from uuid import uuid4

import pytest
from pytest_django import Settings

from dispatcher import api, engine
from dispatcher.engine import attempt
from dispatcher.lifecycle.claim import Claimed, Refused, claim
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.states import State
from tests.races.audit import audit
from tests.races.lockstep import actors, concurrent
from tests.races.traffic import in_flight

pytestmark = [concurrent, pytest.mark.server]

LOST = TimeoutError("its worker is gone")


@pytest.fixture
def short_leases(settings: Settings) -> None:
    """Let what is admitted, or runs, be given up at once."""
    settings.DISPATCHER = {"dispatch_lease": 0, "run_lease": 0, "retry": {"initial_interval": 0}}


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


def test_a_worker_that_was_refused_does_not_put_back_what_was_given_to_another(short_leases: None) -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    (call,) = in_flight("api")
    api.pause("api")
    assert claim(call.id, call.ticket) is Refused.KEY_CLOSED
    engine.recover()
    api.resume("api")
    now = CallQueue.objects.get(id=call.id)
    late = attempt.Attempt(call.id, call.ticket, claim_id=uuid4(), worker=None)
    assert not late.refuse(Refused.KEY_CLOSED)
    again = CallQueue.objects.get(id=call.id)
    assert (again.state, again.ticket) == (State.DISPATCHED, now.ticket)
    audit(has_ended=False)
