"""A message that is delivered twice: what its second holder does changes nothing for the worker that runs the call."""

from dataclasses import replace
from datetime import timedelta
from functools import partial
from uuid import uuid4

import pytest

from dispatcher.celery import DispatchedRequest
from dispatcher.lifecycle import claim, finish
from dispatcher.models import CallQueue, Slot
from dispatcher.states import State
from tests.builders import HERE, admitted, at, committed, key, seen, ticket_of
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
    claimed = claim.claim(call.id, ticket_of(call), claim_id=CLAIM, worker=HERE.id, now=at(1))
    assert isinstance(claimed, claim.Claimed)
    return seen(call)


@pytest.mark.parametrize("end", ["completes", "fails", "is rate limited"])
def test_an_outcome_ends_the_attempt_of_its_own_claim_only(running: CallQueue, end: str) -> None:
    """The commit of the first claim was lost in a crash of the database, and a duplicate claimed the call again."""
    CallQueue.objects.update(state=State.DISPATCHED, attempt=0, started_at=None, claim=None)
    Slot.objects.update(started_at=None)
    again = claim.claim(running.id, ticket_of(running), claim_id=uuid4(), worker=OTHER.id)
    assert isinstance(again, claim.Claimed)
    of_the_first = {
        "completes": partial(finish.complete, result="first"),
        "fails": partial(finish.fail, error=ValueError(), attempt=1, policy=None),
        "is rate limited": partial(finish.put_back, from_states=[State.ACTIVE], wait=timedelta(seconds=1)),
    }[end]
    assert of_the_first(running.id, ticket_of(running), claim_id=CLAIM) is None
    assert (seen(running).state, seen(running).attempt) == (State.ACTIVE, 1)
    assert finish.complete(running.id, ticket_of(running), result="second", claim_id=again.claim_id)
    assert seen(running).result == "second"


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
