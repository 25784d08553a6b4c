"""Enqueue: calls that are to be sent later are checked before."""

from collections.abc import Iterator
from typing import Any

import pytest
from celery import shared_task
from celery.canvas import Signature
from kombu import Exchange, Message, Queue

from dispatcher.models import CallQueue
from dispatcher.ojs import enqueue
from dispatcher.request import Call
from tests.builders import committed
from tests.steps.conftest import Broker, make_app

pytestmark = committed


@shared_task(name="tests.signature.add")
def add(x: int, y: int = 0) -> int:
    return x + y


@shared_task(
    name="tests.signature.special",
    ignore_result=False,
    priority=3,
    serializer="yaml",
    compression="gzip",
    delivery_mode=1,
    time_limit=30,
    soft_time_limit=20.5,
    shadow_name=lambda task, args, kwargs, options: f"special {args[0]}",
)
def special(x: int) -> int:
    return x


@shared_task(name="tests.signature.brief", expires=60)
def brief() -> None: ...


@shared_task(name="tests.signature.untyped", typing=False)
def untyped(x: int) -> None: ...


@shared_task(name="tests.signature.pickled", serializer="pickle")
def pickled() -> None: ...


@shared_task(name="tests.signature.elsewhere", exchange="elsewhere")
def elsewhere() -> None: ...


@shared_task(name="tests.signature.sender", bind=True)
def sender(self: Any) -> str:
    return str(CallQueue.objects.send(add, args=[1, 2]).id)


# Arguments


def test_a_call_that_is_to_be_sent_later_is_checked_before() -> None:
    wanted = [
        enqueue.EnqueueRequest(call=Call(task=name, args=[]), queue="celery")
        for name in ("unknown", add.name, pickled.name)
    ]
    assert {place: fault.field for place, fault in enqueue.validation_errors(wanted).items()} == {
        1: "args",
        2: "serializer",
    }


def published(broker: Broker, queue: str = "celery") -> Message:
    (message,) = broker.take(queue)
    return message


ASKED: list[Signature] = [
    add.s(1, y=2),
    add.s(1).set(priority=5),
    add.s(1).set(time_limit=7),
    add.s(1).set(soft_time_limit=2.5, time_limit=3),
    add.s(1).set(ignore_result=False),
    add.s(1).set(ignore_result=True),
    add.s(1).set(compression="zlib"),
    add.s(1).set(serializer="yaml"),
    add.s(1).set(delivery_mode="transient"),
    add.s(1).set(shadow="other name"),
    add.s(1).set(argsrepr="(hidden)", kwargsrepr="{hidden}"),
    add.s(1).set(headers={"tenant": "acme", "nested": {"a": [1]}}),
    add.s(1).set(stamped_headers=["order"], order=["a-1"]),
    special.s(4),
    special.s(4).set(priority=9, compression="bzip2", ignore_result=True, time_limit=None),
]


@pytest.fixture
def topics() -> Iterator[Broker]:
    """Have a queue that is bound to a topic."""
    queue = Queue("eu", Exchange("orders", type="topic"), routing_key="orders.eu.#")
    routes = {"tests.signature.add": {"queue": "eu", "routing_key": "orders.eu.new", "priority": 4}}
    made = make_app(
        "topics", task_queues=[Queue("celery"), queue], task_routes=routes, task_create_missing_queues=False
    )
    made.set_current()
    broker = Broker(made)
    broker.take("eu")
    yield broker
    broker.take("eu")
