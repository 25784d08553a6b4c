"""Delivery: how the calls of a queue reach its workers, as the settings and the queue's row define it."""

from dataclasses import replace
from typing import Any
from unittest import mock
from uuid import uuid4

import pytest
from django.utils import timezone

from dispatcher import ending, lanes, sql
from dispatcher.engine import ends
from dispatcher.errors import ConfigurationError
from dispatcher.lifecycle import heartbeat
from dispatcher.lifecycle.finish import Ended
from dispatcher.models import CallQueue, Note, Process, Queue
from dispatcher.states import Delivery, State
from tests import sessions
from tests.builders import HERE, committed, go, key, seen, started, ticket_of, waiting
from tests.faults import locked

pytestmark = committed


@pytest.mark.parametrize(
    ("queue", "delivery"),
    [
        ("email", "direct"),
        ("email.bulk", "http"),
        ("emails", "direct"),
        ("other", "direct"),
    ],
)
def test_the_setting_names_queues_or_templates_and_the_longest_counts(queue: str, delivery: str, settings: Any) -> None:
    settings.DISPATCHER = {"delivery": {"email*": "direct", "email.*": "http"}}
    assert lanes.declared_delivery(queue) == delivery


def test_an_unknown_delivery_is_refused_by_name(settings: Any) -> None:
    settings.DISPATCHER = {"delivery": {"mail": "post"}}
    with pytest.raises(ConfigurationError, match="broker, direct, http"):
        lanes.declared_delivery("mail")


@pytest.mark.ojs
def test_the_first_lane_of_a_queue_makes_its_row_and_the_row_counts_from_then_on(settings: Any) -> None:
    settings.DISPATCHER = {"delivery": {"mail": "direct"}}
    CallQueue.objects.send("mail.send", queue="mail")
    assert Queue.objects.get().delivery == Delivery.DIRECT
    settings.DISPATCHER = {"delivery": {"mail": "http"}}
    CallQueue.objects.send("mail.send", queue="mail", priority=1)
    assert Queue.objects.get().delivery == Delivery.DIRECT


def test_a_queue_of_the_broker_needs_no_row() -> None:
    CallQueue.objects.send("mail.send", queue="mail")
    assert not Queue.objects.exists()


def test_a_send_whose_call_is_committed_does_not_fail_where_no_worker_can_be_woken() -> None:
    Queue.objects.create(name="mail", delivery="direct")
    Process.objects.create(id=uuid4(), queues=["mail"], idle_at=timezone.now())
    ask = sql.ask

    def fail_to_wake(name: str, row: Any, params: Any) -> Any:
        return ask(name, row, {**params, "silence": "no time"} if name == "wake_workers" else params)

    with mock.patch.object(sql, "ask", fail_to_wake):
        call = CallQueue.objects.send("noop", queue="mail")
    assert Process.objects.filter(idle_at__isnull=False).exists()
    assert seen(call).position == call.position
    assert Note.objects.filter(lane_id=call.lane_id).exists()


def test_a_queue_that_is_direct_no_more_publishes_the_next_call() -> None:
    queue = Queue.objects.create(name="mail", delivery="direct")
    CallQueue.objects.send("noop", queue="mail")
    queue.delivery = "broker"
    queue.save()
    call = CallQueue.objects.send("noop", queue="mail", priority=1)
    again = CallQueue.objects.send("noop", queue="mail", priority=1)
    assert [seen(each).state for each in (call, again)] == [State.DISPATCHED, State.DISPATCHED]


@pytest.mark.parametrize(("life", "state"), [("idle", "available"), ("at work", "available"), ("over", "dispatched")])
def test_a_send_leaves_its_call_to_a_publisher_that_lives(life: str, state: str) -> None:
    idle_at = None if life == "at work" else timezone.now()
    publisher = Process.objects.create(id=uuid4(), worker_id=uuid4(), queues=["mail"], idle_at=idle_at)
    if life != "over":
        sessions.begin(publisher.id)
    call = CallQueue.objects.send("noop", queue="mail")
    publisher.refresh_from_db()
    assert (seen(call).state, publisher.idle_at is None) == (state, life != "over")


def test_a_send_needs_no_publisher_where_every_process_of_its_workers_has_something_to_do() -> None:
    heartbeat.record(replace(HERE, queues=["mail"], processes=1), [])
    CallQueue.objects.send("noop", queue="mail")
    publisher = Process.objects.create(id=uuid4(), worker_id=HERE.id, queues=["mail"], idle_at=timezone.now())
    sessions.begin(publisher.id)
    call = CallQueue.objects.send("noop", queue="mail")
    publisher.refresh_from_db()
    assert (seen(call).state, publisher.idle_at is None) == (State.AVAILABLE, False)


def test_an_end_whose_key_stays_locked_leaves_the_next_call_to_a_publisher() -> None:
    key("api", concurrency=1)
    call = started("api")
    assert go(waiting("api")) == []
    publisher = Process.objects.create(id=uuid4(), worker_id=uuid4(), queues=[call.queue], idle_at=timezone.now())
    sessions.begin(publisher.id)
    ended = Ended(call_id=call.id, ticket=ticket_of(call), claim_id=call.claim, ending=ending.completed(None))
    with locked("key", "api"):
        assert ends.record([ended], queue=call.queue) == {call.id}
    publisher.refresh_from_db()
    assert publisher.idle_at is None
