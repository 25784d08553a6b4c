"""Capture: what the sender's context adds to a message is kept with the call, and published with it."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import pytest
from celery import Celery, shared_task, signals
from kombu import Producer

from dispatcher import api, engine
from dispatcher.errors import CallInvalid
from dispatcher.messages import capture
from dispatcher.models import CallQueue
from tests.builders import committed, held, key, seen
from tests.steps.conftest import Broker, make_app
from tests.steps.send_variants import SendVariant, alone, every_send_variant

pytestmark = [committed, pytest.mark.celery]

request_id: ContextVar[str] = ContextVar("request_id", default="none")
"""What a web framework knows of the request that it serves."""


@shared_task(name="tests.capture.charge")
def charge(amount: int = 0) -> None: ...


class Receivers:
    """Receivers of Celery's publish signals that note the calls they have seen."""

    def __init__(self) -> None:
        self.before: list[str] = []
        self.after: list[str] = []

    def on_before(self, headers: dict[str, Any], **_: Any) -> None:
        self.before.append(headers["id"])
        headers["request_id"] = request_id.get()

    def on_after(self, headers: dict[str, Any], **_: Any) -> None:
        self.after.append(headers["id"])


@pytest.fixture
def receivers() -> Iterator[Receivers]:
    """Have receivers that add the request's id."""
    receivers = Receivers()
    with connected(receivers.on_before), connected(receivers.on_after, signals.after_task_publish):
        yield receivers


@contextmanager
def connected(receiver: Any, signal: Any = signals.before_task_publish) -> Iterator[None]:
    signal.connect(receiver, weak=False, dispatch_uid="tests")
    try:
        yield
    finally:
        signal.disconnect(dispatch_uid="tests")


def test_nothing_is_captured_where_nothing_could_be_added() -> None:
    assert not capture.is_needed()
    alone(task=charge)
    assert seen(alone(task=charge)).headers is None


@every_send_variant
def test_the_headers_of_the_senders_context_are_stored(send: SendVariant, receivers: Receivers) -> None:
    request_id.set("first")
    assert seen(send(task=charge)).headers == {"request_id": "first"}
    assert seen(send(task="not.known.here", headers={"tenant": "acme"})).headers == {
        "request_id": "first",
        "tenant": "acme",
    }


def test_a_call_that_another_one_lets_in_keeps_the_context_of_its_sender(receivers: Receivers, broker: Broker) -> None:
    key("api", concurrency=0)
    request_id.set("senders")
    call = alone(task=charge, keys=["api"])
    request_id.set("another")
    api.limit("api", {})
    (message,) = broker.take()
    assert (message.headers["id"], message.headers["request_id"]) == (str(call.id), "senders")


@every_send_variant
def test_a_call_is_one_publication_to_receivers_however_often_it_is_published(
    send: SendVariant, receivers: Receivers, broker: Broker
) -> None:
    key("api", concurrency=0)
    call = send(task=charge, keys=["api"])
    api.limit("api", {})
    assert engine.lose([held(call)], OSError(), is_crash=False)
    assert [each.headers["id"] for each in broker.take()].count(str(call.id)) == 2
    assert receivers.before.count(str(call.id)) == receivers.after.count(str(call.id)) == 1


def test_a_call_that_is_refused_is_no_publication(receivers: Receivers) -> None:
    with pytest.raises(CallInvalid):
        alone(task=charge, priority=1000)
    assert receivers.before == []


def test_what_a_receiver_changes_in_arguments_and_properties_is_kept(broker: Broker) -> None:
    def change(body: Any, headers: dict[str, Any], properties: dict[str, Any], **_: Any) -> None:
        body[0].append(5)
        properties["priority"] = 7
        headers["argsrepr"] = "(hidden)"

    with connected(change):
        key("api", concurrency=0)
        call = seen(alone(task="not.known.here", args=[1], keys=["api"]))
    assert (call.args, call.options) == ([1, 5], {"priority": 7, "argsrepr": "(hidden)"})
    api.limit("api", {})
    (message,) = broker.take()
    assert message.payload[0] == [1, 5]
    assert (message.properties["priority"], message.headers["argsrepr"]) == (7, "(hidden)")


def test_a_header_that_is_not_json_is_refused_by_its_name() -> None:
    def add_bytes(headers: dict[str, Any], **_: Any) -> None:
        headers["raw"] = b"raw"

    with connected(add_bytes), pytest.raises(CallInvalid, match="bytes is not JSON") as refused:
        alone(task=charge)
    assert refused.value.field == "headers.raw"
    assert not CallQueue.objects.exists()


def test_a_receiver_that_fails_changes_nothing_for_the_sender(broker: Broker) -> None:
    def fail(**_: Any) -> None:
        raise RuntimeError

    with connected(fail):
        call = alone(task=charge, args=[1])
    (message,) = broker.take()
    assert message.headers["id"] == str(call.id)


def test_the_ticket_of_a_message_is_never_the_senders(broker: Broker) -> None:
    def take_over(headers: dict[str, Any], **_: Any) -> None:
        headers["dispatcher_ticket"] = "mine"

    with connected(take_over):
        call = alone(task=charge)
    (message,) = broker.take()
    assert message.headers["dispatcher_ticket"] == str(seen(call).ticket)


class TracedCelery(Celery):
    """An app that adds a header by itself, as instrumentation does."""

    def send_task(self, *args: Any, **options: Any) -> Any:
        options["headers"] = {**(options.get("headers") or {}), "traced": "yes"}
        return super().send_task(*args, **options)


class OwnCelery(Celery):
    """An app that publishes by itself."""

    def send_task(self, *args: Any, **options: Any) -> None: ...


def app_of(kind: type[Celery]) -> Celery:
    made = kind("own", task_cls="dispatcher.celery:DispatchedTask")
    made.conf.update(broker_read_url="memory://", broker_write_url="memory://")
    made.set_current()
    return made


def test_an_app_that_adds_headers_by_itself_is_asked_for_them(broker: Broker) -> None:
    app_of(TracedCelery)
    assert seen(alone(task="not.known.here", headers={"tenant": "acme"})).headers == {"traced": "yes", "tenant": "acme"}


def test_an_app_that_does_not_publish_as_it_is_asked_to_is_refused() -> None:
    app_of(OwnCelery)
    with pytest.raises(CallInvalid, match="by the producer that it is given"):
        alone(task="not.known.here")


def test_the_event_that_a_task_was_sent_is_sent_when_it_is(
    receivers: Receivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_app("events", task_send_sent_event=True).set_current()
    publish, sent = Producer.publish, []

    def note(self: Producer, body: Any, **options: Any) -> Any:
        sent.append(body["type"] if isinstance(body, dict) else "message")
        return publish(self, body, **options)

    monkeypatch.setattr(Producer, "publish", note)
    key("api", concurrency=0)
    alone(task=charge, keys=["api"])
    assert sent == []
    api.limit("api", {})
    assert sent == ["message", "task-sent"]


def test_an_eager_call_is_no_publication(receivers: Receivers) -> None:
    make_app("eager", task_always_eager=True).set_current()
    alone(task=charge)
    assert (receivers.before, receivers.after) == ([], [])
