"""A message that is delivered twice: what its second holder does changes nothing for the worker that runs the call."""

from dataclasses import replace
from uuid import uuid4

import pytest

from dispatcher.celery import DispatchedRequest
from dispatcher.ending import Ending
from dispatcher.engine import attempt
from dispatcher.errors import RateLimited
from dispatcher.lifecycle import claim
from dispatcher.lifecycle.run import Outcome, Returned, raised
from dispatcher.models import CallQueue, Slot
from dispatcher.states import State
from tests.builders import HERE, admitted, committed, key, seen, ticket_of
from tests.steps.conftest import Broker
from tests.steps.sample_tasks import do, sent

pytestmark = [committed, pytest.mark.usefixtures("nothing_ran"), pytest.mark.pooler]

OTHER = replace(HERE, id=uuid4(), name="celery@there")
CLAIM = uuid4()


@pytest.fixture
def running() -> CallQueue:
    """Return a call that one worker runs."""
    key("api", concurrency=1)
    call = admitted("api")
    claimed = claim.claim(call.id, ticket_of(call), claim_id=CLAIM, worker=HERE.id)
    assert isinstance(claimed, claim.Claimed)
    return seen(call)


@pytest.mark.parametrize("end", ["completes", "fails", "is rate limited"])
def test_an_outcome_ends_the_attempt_of_its_own_claim_only(running: CallQueue, end: str) -> None:
    """The commit of the first claim was lost in a crash of the database, and a duplicate claimed the call again."""
    CallQueue.objects.update(state=State.DISPATCHED, attempt=0, started_at=None, claim=None)
    Slot.objects.update(started_at=None)
    again = claim.claim(running.id, ticket_of(running), claim_id=uuid4(), worker=OTHER.id)
    assert isinstance(again, claim.Claimed)
    first = replace(again, claim_id=CLAIM)
    errors = {"fails": ValueError(), "is rate limited": RateLimited(1)}
    assert record(running, first, raised(errors[end]) if end in errors else Returned(result="first")) is None
    assert (seen(running).state, seen(running).attempt) == (State.ACTIVE, 1)
    assert record(running, again, Returned(result="second"))
    assert seen(running).result == "second"


def record(call: CallQueue, claimed: claim.Claimed, outcome: Outcome) -> Ending | None:
    """Record the outcome of the attempt of a claim."""
    this = attempt.Attempt(call.id, ticket_of(call), claim_id=claimed.claim_id, worker=HERE.id)
    return this.record(outcome, claimed)


def test_every_delivery_has_a_claim_of_its_own_that_travels_to_the_pool(broker: Broker) -> None:
    call = sent()
    (message,) = broker.take()
    first, second = (DispatchedRequest(message, app=broker.app, task=do) for _ in range(2))
    assert first.claim_id != second.claim_id
    do.push_request(first.request_dict, called_directly=False)
    try:
        assert do() == "done"
    finally:
        do.pop_request()
    assert seen(call).claim == first.claim_id


def test_a_duplicate_whose_process_is_lost_leaves_the_call_to_the_process_that_runs_it(broker: Broker) -> None:
    call = sent()
    (message,) = broker.take()
    runs, duplicate = (DispatchedRequest(message, app=broker.app, task=do) for _ in range(2))
    assert isinstance(claim.claim(call.id, ticket_of(call), claim_id=runs.claim_id), claim.Claimed)
    duplicate.on_timeout(soft=False, timeout=5)
    assert (seen(call).state, seen(call).attempt) == (State.ACTIVE, 1)
    runs.on_timeout(soft=False, timeout=5)
    assert (seen(call).state, seen(call).error["type"]) == (State.RETRYABLE, "TimeLimitExceeded")
