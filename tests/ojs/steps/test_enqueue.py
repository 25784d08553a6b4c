"""Jobs that are sent: who leaves the queue makes way for those behind it, and who is sent later is checked before."""

import pytest
from celery import shared_task
from django.db import transaction

from dispatcher.models import CallQueue, Queue
from dispatcher.ojs import enqueue
from dispatcher.ojs.models import Job
from dispatcher.request import Call
from dispatcher.states import Delivery, OnFull, State
from tests.builders import at, committed, go, key, started, states, waiting

pytestmark = [committed, pytest.mark.pooler]

HOUR = 3600


def shut() -> tuple[CallQueue, list[CallQueue]]:
    """Return a call that costs 5 where only 2 are left, and cheap ones behind it, in its lane and in another one."""
    for name in ("tenant", "other"):
        key(name)
    key("api", rate=(10, HOUR))
    started(costs={"api": 8, "other": 1})
    dear = waiting(costs={"api": 5})
    cheap = [waiting("api"), waiting("api", "tenant")]
    assert go(dear, *cheap, now=at(1)) == []
    return dear, cheap


def test_those_behind_a_call_that_a_full_queue_drops_go_after_the_commit() -> None:
    dear, cheap = shut()
    Queue.objects.create(name="celery", delivery=Delivery.BROKER, max_depth=3, on_full=OnFull.DROP_OLDEST)
    with transaction.atomic():
        enqueue.enqueue(
            [enqueue.EnqueueRequest(call=Call(task="noop", keys=[key("shut", concurrency=0).name]), queue="celery")]
        )
        assert states(cheap) == [State.AVAILABLE] * 2
    assert states([dear, *cheap]) == [State.DISCARDED, State.DISPATCHED, State.DISPATCHED]


def test_those_behind_a_call_that_is_replaced_go_at_once() -> None:
    dear, cheap = shut()
    Job.objects.create(call=dear, created_at=dear.created_at, unique_key="once")
    unique = enqueue.Unique(key="once", states=["available"], on_conflict="replace")
    enqueue.enqueue([enqueue.EnqueueRequest(call=Call(task="noop"), queue="celery", unique=unique)])
    assert states([dear, *cheap]) == [State.CANCELLED, State.DISPATCHED, State.DISPATCHED]


@shared_task(name="tests.enqueue.add")
def add(x: int, y: int = 0) -> int:
    return x + y


@shared_task(name="tests.enqueue.pickled", serializer="pickle")
def pickled() -> None: ...


def test_a_call_that_is_to_be_sent_later_is_checked_before() -> None:
    wanted = [
        enqueue.EnqueueRequest(call=Call(task=name, args=[]), queue="celery")
        for name in ("unknown", add.name, pickled.name)
    ]
    assert {place: fault.field for place, fault in enqueue.validation_errors(wanted).items()} == {
        1: "args",
        2: "serializer",
    }
