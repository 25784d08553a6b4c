"""What is written by a step for the HTTP API: jobs that are sent later are checked before, and events name a group."""

from typing import Any

from celery import shared_task

from dispatcher.api import any_of
from dispatcher.ojs import enqueue
from dispatcher.ojs.models import EventLogEntry
from dispatcher.request import Call
from tests.builders import committed, go, key, waiting

pytestmark = committed


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


def test_the_events_name_the_group(settings: Any) -> None:
    settings.DISPATCHER = {"event_retention": 3600}
    key("egress:1", concurrency=1)
    egress = any_of("egress:*")
    go(waiting(egress), waiting(egress))
    entry = EventLogEntry.objects.get(kind="rate_limit.exceeded")
    assert (entry.data["key"], entry.data["strategy"]) == ("egress:*", "concurrency")
