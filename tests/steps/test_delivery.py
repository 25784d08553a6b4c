"""Delivery: how the calls of a queue reach its workers, as the settings and the queue's row define it."""

from typing import Any

import pytest

from dispatcher import engine, lanes
from dispatcher.errors import ConfigurationError
from dispatcher.models import CallQueue, Lane, Queue
from dispatcher.states import Delivery, State
from tests.builders import committed, seen

pytestmark = committed


@pytest.mark.parametrize(
    ("queue", "delivery"),
    [("email", "direct"), ("email.bulk", "http"), ("emails", "direct"), ("other", "broker")],
)
def test_the_setting_names_queues_or_templates_and_the_longest_counts(queue: str, delivery: str, settings: Any) -> None:
    settings.DISPATCHER = {"delivery": {"email*": "direct", "email.*": "http"}}
    assert lanes.declared_delivery(queue) == delivery


def test_an_unknown_delivery_is_refused_by_name(settings: Any) -> None:
    settings.DISPATCHER = {"delivery": {"mail": "post"}}
    with pytest.raises(ConfigurationError, match="broker, direct, http"):
        lanes.declared_delivery("mail")


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


def test_a_call_of_a_direct_queue_is_never_published() -> None:
    Queue.objects.create(name="mail", delivery="direct")
    calls = [CallQueue.objects.send("mail.send", queue="mail") for _ in range(2)]
    engine.tick()
    assert [seen(call).state for call in calls] == [State.AVAILABLE, State.AVAILABLE]
    assert Lane.objects.get().is_held
