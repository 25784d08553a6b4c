"""A call that leaves its queue over HTTP makes way for those behind it."""

from typing import Any

import pytest
from django.db import transaction

from dispatcher.models import CallQueue, Queue
from dispatcher.ojs import enqueue
from dispatcher.ojs.models import Job
from dispatcher.request import Call
from dispatcher.states import Delivery, OnFull, State
from tests.builders import at, committed, go, key, lane_of, started, states, waiting

pytestmark = committed

HOUR = 3600
LIMITS: list[dict[str, Any]] = [{"rate": (10, HOUR)}, {"concurrency": 10}]
every_limit = pytest.mark.parametrize("limits", LIMITS, ids=str)


def spend(cost: int, **limits: Any) -> None:
    """Make the key `api`, and start a call of this cost in a lane of its own."""
    for name in ("tenant", "other"):
        key(name)
    key("api", **limits)
    started(costs={"api": cost, "other": 1})


def shut(limits: dict[str, Any], **fields: Any) -> tuple[CallQueue, list[CallQueue]]:
    """Return a call that costs 5 where only 2 are left, and cheap ones behind it, in its lane and in another one."""
    spend(8, **limits)
    dear = waiting(costs={"api": 5}, **fields)
    cheap = [waiting("api"), waiting("api", "tenant")]
    assert go(dear, *cheap, now=at(1)) == []
    assert {lane_of(call).parked_on.name for call in (dear, *cheap)} == {"api"}  # type: ignore[union-attr]
    return dear, cheap


def bounded(depth: int) -> None:
    Queue.objects.create(name="celery", delivery=Delivery.BROKER, max_depth=depth, on_full=OnFull.DROP_OLDEST)


@every_limit
def test_those_behind_a_call_that_a_full_queue_drops_go_at_once(limits: dict[str, Any]) -> None:
    dear, cheap = shut(limits)
    bounded(3)
    enqueue.enqueue(
        [enqueue.EnqueueRequest(call=Call(task="noop", keys=[key("shut", concurrency=0).name]), queue="celery")]
    )
    assert states([dear, *cheap]) == [State.DISCARDED, State.DISPATCHED, State.DISPATCHED]


def test_those_behind_a_call_that_is_replaced_go_at_once() -> None:
    dear, cheap = shut(LIMITS[0])
    Job.objects.create(call=dear, created_at=dear.created_at, unique_key="once")
    unique = enqueue.Unique(key="once", states=["available"], on_conflict="replace")
    enqueue.enqueue([enqueue.EnqueueRequest(call=Call(task="noop"), queue="celery", unique=unique)])
    assert states([dear, *cheap]) == [State.CANCELLED, State.DISPATCHED, State.DISPATCHED]


def test_a_call_that_is_dropped_within_a_transaction_opens_its_key_after_the_commit() -> None:
    dear, cheap = shut(LIMITS[0])
    bounded(3)
    with transaction.atomic():
        enqueue.enqueue(
            [enqueue.EnqueueRequest(call=Call(task="noop", keys=[key("shut", concurrency=0).name]), queue="celery")]
        )
        assert states(cheap) == [State.AVAILABLE] * 2
    assert states([dear, *cheap]) == [State.DISCARDED, State.DISPATCHED, State.DISPATCHED]
