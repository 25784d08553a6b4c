"""Why a call waits, in words: what stops its lane, or by the delivery of its queue what that waits for."""

import re
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from django.db.models.functions import Now
from django.test import Client

from dispatcher import api, reports
from dispatcher.engine import dispenser
from dispatcher.lifecycle import heartbeat
from dispatcher.lifecycle.take import Taker, take
from dispatcher.models import CallQueue, Process, Queue, RateLimitKey
from dispatcher.request import Call
from tests.builders import HERE
from tests.deliveries.direct import begin_process
from tests.edges.pages import read

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.django]


def reason(client: Client, call: CallQueue) -> str:
    """Return what the page of a call says, without its HTML."""
    return (
        read(client, call).partition("Why it waits:")[2].partition('<div class="readonly">')[2].partition("</div>")[0]
    )


def send(count: int, **fields: Any) -> list[CallQueue]:
    """Send so many calls of the queue `mail`."""
    return CallQueue.objects.send_many([Call(task="noop", queue="mail", **fields)] * count)


@pytest.fixture
def behind() -> CallQueue:
    """Have a direct queue whose one worker is busy, and return a call that waits behind another."""
    Queue.objects.create(name="mail", delivery="direct")
    heartbeat.record(replace(HERE, queues=["mail"]), [])
    calls = send(3)
    assert len(take(Taker(worker=HERE.id, queues=["mail"]), room=1).starts) == 1
    return calls[2]


def deliver_by(delivery: str) -> None:
    Queue.objects.update(delivery=delivery)


def fill() -> None:
    """Let as many calls of the queue be on their way as may be."""
    deliver_by("broker")
    dispenser.dispense(most=1, trips=1)


def be_idle() -> None:
    begin_process(taker := Taker(worker=HERE.id, process=uuid4(), queues=["mail"]))
    Process.objects.filter(id=taker.process).update(idle_at=Now())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda: None, "All worker processes of the queue mail are busy; 1 of its lane start before it."),
        (lambda: heartbeat.mark_stopped(HERE.id), "No live worker serves the queue mail: start one with -Q mail."),
        (be_idle, "A free worker of the queue mail takes it next"),
        (lambda: deliver_by("http"), "It waits until a worker fetches it over HTTP"),
        (lambda: deliver_by("broker"), "The next tick serves its lane; 1 of its lane start before it."),
        (fill, "The queue mail has enough calls on the way to its workers; it is the first of its lane."),
    ],
    ids=["busy processes", "no worker", "an idle worker", "a fetch", "the next tick", "those on the way to the broker"],
)
def test_a_call_s_page_says_what_it_waits_for(
    boss: Client, behind: CallQueue, change: Any, words: str, settings: Any
) -> None:
    settings.DISPATCHER = {"dispatch_ahead": 1}
    change()
    assert reason(boss, behind).startswith(words)


def test_a_call_s_page_says_what_stops_its_lane_and_until_when(boss: Client, behind: CallQueue) -> None:
    key = RateLimitKey.objects.declare("api", rate=(1, 60))
    taker = Taker(worker=HERE.id, queues=["mail"])
    _, call = send(2, keys=["api"])
    assert len(take(taker, room=9).starts) == 3
    assert re.match(
        r"The key api stops its lane, until \d{4}-[^;]* UTC; it is the first of its lane.", reason(boss, call)
    )
    api.pause("api")
    assert reason(boss, call).startswith("The key api stops its lane; it is the first")
    RateLimitKey.objects.filter(id=key.id).update(is_paused=False, rate_limit=5)
    assert reason(boss, call).startswith("The key api has room again, and its lane is next; it is the first")


def test_a_call_s_page_says_that_it_waits_for_a_worker_that_holds_less(boss: Client, behind: CallQueue) -> None:
    RateLimitKey.objects.declare("api", per_worker=1)
    _, call = send(2, keys=["api"])
    assert len(take(Taker(worker=HERE.id, queues=["mail"]), room=9).starts) == 3
    assert reason(boss, call).startswith("It waits for a worker of mail that is free and holds less of the key api")
    deliver_by("broker")
    assert reason(boss, call).startswith("The key api has a limit per worker, which can&#x27;t be kept")


def test_the_delivery_is_part_of_the_report(behind: CallQueue) -> None:
    wait = reports.why_waiting(behind.pk)
    assert wait is not None
    assert (wait.delivery, wait.is_worker_idle, wait.queue) == ("direct", False, "mail")
