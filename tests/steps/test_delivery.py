"""Delivery: how the calls of a queue reach its workers, as the settings and the queue's row define it."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from dispatcher import engine, lanes, sql
from dispatcher.errors import ConfigurationError
from dispatcher.lifecycle import heartbeat, wake
from dispatcher.models import CallQueue, Feed, Lane, Queue
from dispatcher.states import Delivery, State
from tests.builders import HERE, committed, key, seen

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


def statements_of(work: Callable[[], object]) -> list[str]:
    with mock.patch.object(sql, "ask", wraps=sql.ask) as asked:
        work()
    return [call.args[0] for call in asked.call_args_list]


def test_a_lone_call_of_a_direct_queue_is_recorded_and_wakes_a_worker_in_one_trip() -> None:
    Queue.objects.create(name="mail", delivery="direct")
    key("api", concurrency=1)
    for _ in ("makes the lane", "learns that the queue is direct"):
        CallQueue.objects.send("noop", queue="mail", keys=["api"])
    Lane.objects.update(is_held=False)
    heartbeat.record(HERE, [])
    wake.mark_idle(HERE.id, ["mail"])
    call = CallQueue(id=None)

    def send() -> None:
        nonlocal call
        call = CallQueue.objects.send("noop", args=[1], queue="mail", keys=["api"], meta={"a": 1})

    assert statements_of(send) == ["record_call", "wake_for_call"]
    stored = seen(call)
    assert (stored.state, stored.args, stored.meta, stored.position) == (State.AVAILABLE, [1], {"a": 1}, call.position)
    assert Lane.objects.get().is_held
    assert Feed.objects.get().idle_at is None, "the idle worker was notified"


def test_a_send_whose_call_is_committed_does_not_fail_where_no_worker_can_be_woken() -> None:
    Queue.objects.create(name="mail", delivery="direct")
    for _ in ("makes the lane", "learns that the queue is direct"):
        CallQueue.objects.send("noop", queue="mail")
    Lane.objects.update(is_held=False)
    ask = sql.ask

    def fail_to_wake(name: str, row: Any, params: Any) -> Any:
        return ask(name, row, {**params, "id": "no id"} if name == "wake_for_call" else params)

    with mock.patch.object(sql, "ask", fail_to_wake):
        call = CallQueue.objects.send("noop", queue="mail")
    assert seen(call).position == call.position
    assert Lane.objects.get().is_held, "the look after the commit has held it"


def test_a_call_to_a_lane_that_is_held_already_wakes_no_worker() -> None:
    Queue.objects.create(name="mail", delivery="direct")
    for _ in ("makes the lane", "learns that the queue is direct"):
        CallQueue.objects.send("noop", queue="mail")
    heartbeat.record(HERE, [])
    wake.mark_idle(HERE.id, ["mail"])
    CallQueue.objects.send("noop", queue="mail")
    assert Feed.objects.get().idle_at is not None


def test_a_lane_that_is_parked_on_a_full_key_is_not_held() -> None:
    Queue.objects.create(name="mail", delivery="direct")
    full = key("api", concurrency=0)
    for _ in ("makes the lane", "learns that the queue is direct"):
        CallQueue.objects.send("noop", queue="mail", keys=["api"])
    Lane.objects.update(is_held=False, parked_on=full)
    CallQueue.objects.send("noop", queue="mail", keys=["api"])
    lane = Lane.objects.get()
    assert (lane.is_held, lane.parked_on_id) == (False, full.pk)


def test_a_queue_that_is_direct_no_more_publishes_the_next_call() -> None:
    queue = Queue.objects.create(name="mail", delivery="direct")
    for _ in ("makes the lane", "learns that the queue is direct"):
        CallQueue.objects.send("noop", queue="mail")
    queue.delivery = "broker"
    queue.save()
    call = CallQueue.objects.send("noop", queue="mail", priority=1)
    again = CallQueue.objects.send("noop", queue="mail", priority=1)
    assert [seen(each).state for each in (call, again)] == [State.DISPATCHED, State.DISPATCHED]


def test_a_new_key_or_lane_of_a_direct_queue_is_made_at_the_send() -> None:
    Queue.objects.create(name="mail", delivery="direct")
    CallQueue.objects.send("noop", queue="mail")
    key("api", concurrency=1)
    call = CallQueue.objects.send("noop", queue="mail", keys=["api"])
    assert call.lane_id != CallQueue.objects.exclude(id=call.id).get().lane_id
    assert Lane.objects.filter(is_held=True).count() == 2


def test_a_call_of_a_direct_queue_is_never_published() -> None:
    Queue.objects.create(name="mail", delivery="direct")
    calls = [CallQueue.objects.send("mail.send", queue="mail") for _ in range(2)]
    engine.tick()
    assert [seen(call).state for call in calls] == [State.AVAILABLE, State.AVAILABLE]
    assert Lane.objects.get().is_held
