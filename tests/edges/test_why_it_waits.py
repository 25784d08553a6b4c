"""Why a call waits that its queue holds, in words: by the delivery of the queue."""

from dataclasses import replace
from typing import Any

import pytest
from django.test import Client

from dispatcher import reports
from dispatcher.lifecycle import heartbeat, wake
from dispatcher.models import CallQueue, Queue
from tests.builders import HERE
from tests.edges.pages import read
from tests.steps.feeding import TAKER, send, take

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.django]


def reason(client: Client, call: CallQueue) -> str:
    """Return what the page of a call says, without its HTML."""
    return (
        read(client, call).partition("Why it waits:")[2].partition('<div class="readonly">')[2].partition("</div>")[0]
    )


@pytest.fixture
def behind() -> CallQueue:
    """Have a direct queue whose one worker is busy, and return a call that waits behind another."""
    Queue.objects.create(name="mail", delivery="direct")
    heartbeat.record(replace(HERE, queues=["mail"]), [])
    calls = send(3)
    assert len(take(1).starts) == 1
    return calls[2]


def deliver_by(delivery: str) -> None:
    Queue.objects.update(delivery=delivery)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda: None, "All worker processes of the queue mail are busy; 1 of its lane start before it."),
        (lambda: heartbeat.mark_stopped(HERE.id), "No live worker serves the queue mail: start one with -Q mail."),
        (lambda: wake.mark_idle(TAKER.worker, ["mail"]), "A free worker of the queue mail takes it next"),
        (lambda: deliver_by("http"), "It waits until a worker fetches it over HTTP"),
        (lambda: deliver_by("broker"), "The queue mail has enough calls on the way to its workers"),
    ],
    ids=["busy processes", "no worker", "an idle worker", "a fetch", "those on the way to the broker"],
)
def test_a_call_s_page_says_what_it_waits_for(boss: Client, behind: CallQueue, change: Any, words: str) -> None:
    change()
    assert reason(boss, behind).startswith(words)


def test_the_delivery_is_part_of_the_report(behind: CallQueue) -> None:
    wait = reports.why_waiting(behind.pk)
    assert wait is not None
    assert (wait.delivery, wait.is_worker_idle, wait.held_by) == ("direct", False, "mail")
