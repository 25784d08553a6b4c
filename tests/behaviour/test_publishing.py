"""The row is the outbox: what the broker does not take stays admitted, and goes with the same ticket later."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from amqp.exceptions import MessageNacked, PreconditionFailed
from celery import Celery
from kombu import Producer
from redis.exceptions import OutOfMemoryError

from dispatcher import api
from dispatcher.models import CallQueue
from dispatcher.states import State
from tests.deliveries.broker import Broker
from tests.faults import refusing
from tests.races.lockstep import Mailbox, app

pytestmark = pytest.mark.deliveries("broker")

away = Celery("away", task_cls="dispatcher.celery:DispatchedTask", set_as_current=False)
away.conf.update(broker_read_url="redis://127.0.0.1:1/0", broker_write_url="redis://127.0.0.1:1/0")


@pytest.fixture(autouse=True)
def _impatient(drive: Broker, settings: Any) -> Iterator[None]:
    settings.DISPATCHER = {"publish_pause": 0, "publish_after": 10, "dispatch_lease": 100}
    yield
    Mailbox("full").empty()


def published(drive: Broker, *calls: CallQueue) -> list[bool]:
    return [drive.row(call).published_at is not None for call in calls]


def test_a_message_carries_its_call_ticket_and_attempts(drive: Broker) -> None:
    call = drive.send(retry={"initial_interval": 1})
    (run,) = drive.take()
    drive.end(run, error=ValueError())
    drive.forward(1)
    message = drive.mailbox.connection.default_channel.basic_get("mail", no_ack=True)
    assert message is not None
    assert (message.headers["task"], message.headers["id"]) == ("noop", str(call.id))
    assert message.headers["retries"] == 1
    assert UUID(message.headers["dispatcher_ticket"]) == drive.row(call).ticket


def test_what_the_broker_does_not_take_keeps_its_slots_and_is_published_with_the_same_ticket(drive: Broker) -> None:
    drive.key(concurrency=2)
    away.set_current()
    calls = drive.send_many(3, "api")
    lone = drive.send("api")
    assert drive.states([*calls, lone]) == [State.DISPATCHED, State.DISPATCHED, State.AVAILABLE, State.AVAILABLE]
    tickets = [drive.row(call).ticket for call in calls]
    for _ in range(3):
        drive.forward(60)
        drive.recover()
    assert published(drive, *calls) == [False] * 3
    app.set_current()
    drive.forward(11)
    assert drive.mailbox.empty() == [(call.id, ticket) for call, ticket in zip(calls[:2], tickets[:2], strict=True)]
    drive.forward(11)
    assert drive.mailbox.empty() == []
    assert published(drive, *calls) == [True, True, False]


def test_what_was_just_admitted_is_left_to_the_process_that_admitted_it(drive: Broker) -> None:
    away.set_current()
    call = drive.send()
    app.set_current()
    drive.forward(10)
    assert not any(published(drive, call))
    drive.forward(0.1)
    assert all(published(drive, call))


def test_a_call_that_was_cancelled_before_it_was_published_is_not(drive: Broker) -> None:
    away.set_current()
    calls = drive.send_many(2)
    api.cancel([calls[0].id])
    app.set_current()
    drive.forward(11)
    assert [call for call, _ in drive.mailbox.empty()] == [calls[1].id]
    assert published(drive, *calls) == [False, True]


@pytest.mark.parametrize(
    "refusal", [MessageNacked(), PreconditionFailed("too large"), OutOfMemoryError(), ValueError("bad")], ids=repr
)
def test_a_call_that_the_broker_refuses_stays_and_does_not_stand_in_the_way(
    drive: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, refusal: Exception
) -> None:
    accept = refusing(monkeypatch, refusal)
    refused = drive.beside("broker", "full").send_many(2)
    other = drive.send()
    assert published(drive, *refused, other) == [False, False, True]
    assert f"the broker refused 2 calls of queue full, which stay unpublished: {refusal!r}" in caplog.messages
    accept()
    drive.forward(60)
    assert all(published(drive, *refused))


def test_what_the_broker_took_before_its_connection_broke_is_not_published_again(
    drive: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, sent = Producer.publish, []

    def send_one(*args: Any, **kwargs: Any) -> None:
        """Fail the second time as py-amqp does while it waits for the broker's word: with a plain OSError."""
        if sent:
            message = "Server unexpectedly closed connection"
            raise OSError(message)
        sent.append(send(*args, **kwargs))

    with monkeypatch.context() as broken:
        broken.setattr(Producer, "publish", send_one)
        calls = drive.send_many(3)
    assert published(drive, *calls) == [True, False, False]
    drive.forward(11)
    assert [call for call, _ in drive.mailbox.empty()] == [call.id for call in calls]
