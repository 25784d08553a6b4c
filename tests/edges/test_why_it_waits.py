"""Why a call waits that its queue holds, in words: by the delivery of the queue."""

from dataclasses import replace

import pytest
from django.test import Client
from django.urls import reverse

from dispatcher import reports
from dispatcher.lifecycle import heartbeat, wake
from dispatcher.models import CallQueue, Queue
from tests.builders import HERE
from tests.steps.feeding import TAKER, send, take

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.django]


def reason(client: Client, call: CallQueue) -> str:
    """Return what the page of a call says, without its HTML."""
    page = client.get(reverse("admin:dispatcher_callqueue_change", args=[call.pk])).content.decode()
    return page.partition("Why it waits:")[2].partition('<div class="readonly">')[2].partition("</div>")[0]


@pytest.fixture
def behind() -> CallQueue:
    """Have a direct queue whose one worker is busy, and return a call that waits behind another."""
    Queue.objects.create(name="mail", delivery="direct")
    heartbeat.record(replace(HERE, queues=["mail"]), [])
    calls = send(3)
    assert len(take(1).starts) == 1
    return calls[2]


def test_a_direct_call_waits_for_a_process_while_all_are_busy(boss: Client, behind: CallQueue) -> None:
    assert reason(boss, behind) == "All worker processes of the queue mail are busy; 1 of its lane start before it."


def test_a_direct_call_waits_for_a_worker_while_none_runs(boss: Client, behind: CallQueue) -> None:
    heartbeat.mark_stopped(HERE.id)
    assert "No live worker serves the queue mail: start one with -Q mail." in reason(boss, behind)


def test_a_direct_call_that_an_idle_worker_takes_next_says_so(boss: Client, behind: CallQueue) -> None:
    wake.mark_idle(TAKER.worker, ["mail"])
    assert "A free worker of the queue mail takes it next" in reason(boss, behind)


def test_a_call_served_over_http_waits_for_a_fetch(boss: Client, behind: CallQueue) -> None:
    Queue.objects.update(delivery="http")
    assert "It waits until a worker fetches it over HTTP" in reason(boss, behind)


def test_a_call_of_the_broker_waits_for_those_on_the_way(boss: Client, behind: CallQueue) -> None:
    Queue.objects.update(delivery="broker")
    assert "The queue mail has enough calls on the way to its workers" in reason(boss, behind)


def test_the_delivery_is_part_of_the_report(behind: CallQueue) -> None:
    wait = reports.why_waiting(behind.pk)
    assert wait is not None
    assert (wait.delivery, wait.is_worker_idle, wait.held_by) == ("direct", False, "mail")
