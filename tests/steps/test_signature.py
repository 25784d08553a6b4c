"""What a task, a signature and a sender ask of the message: it is published as Celery does it, or refused."""

import json
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import pytest
from celery import chain, chord, group, shared_task
from celery.canvas import Signature
from django.utils import timezone
from kombu import Exchange, Message, Queue

from dispatcher import api, engine
from dispatcher.errors import CallInvalid
from dispatcher.messages.tickets import TICKET_HEADER
from dispatcher.models import CallQueue
from dispatcher.states import State
from tests.builders import committed, held, key, seen, waiting
from tests.steps.conftest import Broker, make_app
from tests.steps.send_variants import SendVariant, alone, every_send_variant

pytestmark = [committed, pytest.mark.celery]


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


@every_send_variant
def test_a_signature_brings_its_arguments(send: SendVariant) -> None:
    call = seen(send(task=add.s(20, y=22)))
    assert (call.task, call.args, call.kwargs) == ("tests.signature.add", [20], {"y": 22})


@every_send_variant
def test_arguments_given_with_a_signature_are_merged_as_celery_merges_partials(send: SendVariant) -> None:
    call = seen(send(task=add.s(2, y=3), args=[], kwargs={"y": 4}))
    assert (call.args, call.kwargs) == ([2], {"y": 4})
    assert seen(send(task=add.s(1), args=[5])).args == [5, 1] == list(add.s(1).clone([5]).args)


@pytest.mark.parametrize(("given", "field"), [({"args": [1]}, "args"), ({"kwargs": {"y": 1}}, "kwargs")])
def test_an_immutable_signature_takes_no_arguments(given: Mapping[str, Any], field: str) -> None:
    with pytest.raises(CallInvalid, match=r"immutable.* make the signature by \.s\(\)") as refused:
        alone(task=add.si(1), **given)
    assert refused.value.field == field


@every_send_variant
@pytest.mark.parametrize(("args", "kwargs"), [([], {}), ([1, 2, 3], {}), ([1], {"z": 1})])
def test_arguments_that_the_task_does_not_take_are_refused(
    send: SendVariant, args: list[int], kwargs: dict[str, int]
) -> None:
    with pytest.raises(CallInvalid, match=r"tests\.signature\.add can't be called so: .*argument") as refused:
        send(task=add, args=args, kwargs=kwargs)
    assert refused.value.field == "args"
    assert not CallQueue.objects.exists()


def test_arguments_are_not_checked_where_celery_does_not_check_them() -> None:
    alone(task=untyped, args=[1, 2])
    alone(task="not.known.here", args=[1, 2])


@pytest.mark.parametrize("given", [{"args": [1]}, {"kwargs": {"a": 1}}], ids=str)
def test_call_data_takes_the_place_of_arguments(given: Mapping[str, Any]) -> None:
    with pytest.raises(CallInvalid, match="can't be given together with call_data"):
        alone(call_data={"method": "get"}, **given)


# Workflows


@pytest.mark.parametrize(
    "workflow",
    [
        chain(add.s(1, 1), add.s(2)),
        group(add.s(1), add.s(2)),
        chord([add.s(1), add.s(2)], add.s()),
        add.chunks([(1, 1)], 10),
        add.map([1]),
        add.starmap([(1, 2)]),
        "celery.chain",
    ],
    ids=lambda each: getattr(each, "task", each),
)
def test_a_workflow_of_celery_is_refused(workflow: Any) -> None:
    with pytest.raises(CallInvalid, match=r"start it by \.delay\(\), with its tasks under limits") as refused:
        alone(task=workflow)
    assert refused.value.field == "task"


# Options


@pytest.mark.parametrize(
    ("options", "field", "words"),
    [
        ({"link": ["add"]}, "link", r"signatures, such as task\.s\(\)"),
        ({"link_error": 5}, "link_error", "signatures"),
        ({"chord": "add"}, "chord", "signatures"),
        ({"group_index": "first"}, "group_index", "whole number"),
        ({"task_id": "mine"}, "task_id", "must be a UUID"),
        ({"retry": False}, "retry", "until the broker takes it"),
        ({"expiration": 5}, "expiration", "is no option"),
        ({"keys": ["api"]}, "keys", r"see the fields of send\(\)"),
        ({"serializer": "pickle"}, "serializer", "serializer='json'"),
        ({"serializer": "morse"}, "serializer", "not registered"),
        ({"compression": "morse"}, "compression", "not registered"),
        ({"delivery_mode": 3}, "delivery_mode", "transient"),
        ({"priority": "high"}, "priority", "from 0 to 255"),
        ({"time_limit": "1 h"}, "time_limit", "number of seconds"),
        ({"time_limit": 1, "soft_time_limit": 2}, "soft_time_limit", r"more than time_limit \(1\)"),
        ({"ignore_result": "yes"}, "ignore_result", "True or False"),
        ({"shadow": 5}, "shadow", "must be a text"),
        ({"countdown": "soon"}, "countdown", "number of seconds"),
        ({"countdown": 1e12}, "countdown", "a shorter time"),
        ({"countdown": 1, "eta": "2030-01-01T00:00Z"}, "eta", "give one of them"),
        ({"eta": "2030-01-01T00:00"}, "eta", "naive"),
        ({"eta": "soon"}, "eta", "with a time zone"),
        ({"expires": 0}, "expires", "could never start"),
        ({"countdown": 60, "expires": 60}, "expires", "could never start"),
        ({"exchange": "elsewhere"}, "exchange", "bind the queue to it"),
        ({"headers": {"id": "mine"}}, "headers['id']", "choose another name"),
        ({"headers": {"x": object()}}, "headers.x", "object is not JSON"),
        ({"stamped_headers": ["a"], "a": object()}, "options.a", "object is not JSON"),
    ],
    ids=lambda value: str(value).partition(" at 0x")[0],
)
def test_an_option_that_a_call_cannot_have_is_refused_by_its_name(
    options: Mapping[str, Any], field: str, words: str
) -> None:
    with pytest.raises(CallInvalid, match=words) as refused:
        alone(task=add.s(1).set(**options))
    assert refused.value.field == field
    assert not CallQueue.objects.exists()


@pytest.mark.parametrize(
    ("task", "field"), [(pickled, "serializer"), (elsewhere, "exchange")], ids=lambda each: getattr(each, "name", each)
)
def test_a_task_that_asks_for_what_a_call_cannot_have_is_refused(task: Any, field: str) -> None:
    with pytest.raises(CallInvalid) as refused:
        alone(task=task)
    assert refused.value.field == field


def parts(message: Message) -> dict[str, Any]:
    """Return what Celery and the broker look at, but for what names this one message."""
    own = {"id", "root_id", "parent_id", "origin", "dispatcher_ticket", "dispatcher_call"}
    headers = {name: value for name, value in message.headers.items() if name not in own}
    # What was given as a tuple comes back from the database as a list.
    headers["argsrepr"] = headers["argsrepr"].strip("([,])")
    properties = {name: value for name, value in message.properties.items() if name in {"priority", "delivery_mode"}}
    is_json = message.content_type == "application/json" and not headers.get("compression")
    body = json.loads(message.body) if is_json else message.body
    return {"headers": headers, "properties": properties, "type": message.content_type, "body": body}


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
    add.s(1).set(link=[add.s(2)], link_error=[add.si(3), add.s(4)]),
    add.s(1).set(chain=[add.s(2)], chord=add.s(3), group_id="g", group_index=2, replaced_task_nesting=1),
    special.s(4),
    special.s(4).set(priority=9, compression="bzip2", ignore_result=True, time_limit=None),
]


@pytest.mark.parametrize("asked", ASKED, ids=lambda each: f"{each.task} {each.options}")
def test_the_message_of_a_call_is_the_one_that_celery_makes(broker: Broker, asked: Signature) -> None:
    asked.clone().apply_async()
    celerys = parts(published(broker))
    alone(task=asked.clone())
    assert parts(published(broker)) == celerys

    # One that waits is published by a process that does not know the task.
    key("api", concurrency=0)
    call = alone(task=asked.clone(), keys=["api"])
    publisher = make_app("publisher")
    publisher.set_current()
    publisher.tasks.pop(asked.task)
    api.limit("api", {})
    later = parts(published(broker))
    if "ignore_result" not in (call.options or {}):
        # The setting is the worker's, too; without a word on its result the message leaves it to the worker's task.
        assert (later["headers"].pop("ignore_result"), celerys["headers"].pop("ignore_result")) == (None, False)
    assert later == celerys


def test_a_plain_call_stores_no_options() -> None:
    call = seen(alone(task=add.s(1)))
    assert (call.options, call.headers) == (None, None)


def test_a_task_that_its_sender_did_not_know_has_its_own_options_where_its_publisher_knows_it(broker: Broker) -> None:
    call = waiting(queue="celery")
    CallQueue.objects.filter(id=call.id).update(task=special.name, args=[4])
    engine.dispense()
    message = published(broker)
    assert message.headers["timelimit"] == [30, 20.5]
    assert message.properties["priority"] == 3


def test_a_call_goes_to_the_queue_of_its_signature(broker: Broker) -> None:
    assert alone(task=add.s(1).set(queue="its_own")).queue == "its_own"
    assert alone(task=add.s(1).set(queue=Queue("its_own"))).queue == "its_own"
    assert alone(task=add.s(1).set(queue="its_own"), queue="mine").queue == "mine"


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


def test_a_route_brings_its_options(topics: Broker) -> None:
    call = alone(task=add.s(1))
    assert (call.queue, call.options) == ("eu", {"routing_key": "orders.eu.new", "priority": 4})
    message = published(topics, "eu")
    assert message.delivery_info["routing_key"] == "orders.eu.new"
    assert message.delivery_info["exchange"] == "orders"
    assert message.properties["priority"] == 4


def test_a_queue_that_celery_does_not_have_is_refused(topics: Broker) -> None:
    with pytest.raises(CallInvalid, match="missing from task_queues") as refused:
        alone(task=add.s(1).set(queue="nowhere"))
    assert refused.value.field == "queue"


def test_a_route_to_an_exchange_without_a_queue_is_refused() -> None:
    make_app("loose", task_routes={"tests.signature.add": {"exchange": "x", "routing_key": "y"}}).set_current()
    with pytest.raises(CallInvalid, match=r"give queue=") as refused:
        alone(task=add.s(1))
    assert refused.value.field == "exchange"


# Times


@every_send_variant
def test_a_countdown_is_counted_by_the_clock_of_the_database(send: SendVariant) -> None:
    call = send(task=add.s(1).set(countdown=3600))
    stored = seen(call)
    assert stored.state == State.SCHEDULED
    assert stored.scheduled_at == call.scheduled_at == stored.created_at + timedelta(hours=1)


@every_send_variant
def test_the_expiry_of_a_task_is_counted_by_the_clock_of_the_database(send: SendVariant, broker: Broker) -> None:
    call = send(task=brief)
    stored = seen(call)
    assert stored.expires_at == call.expires_at == stored.created_at + timedelta(minutes=1)
    (message,) = [each for each in broker.take() if each.headers["id"] == str(call.id)]
    assert message.headers["expires"] is None


def test_times_of_a_signature_may_be_datetimes_or_iso_texts() -> None:
    at = timezone.now() + timedelta(hours=1)
    call = seen(alone(task=add.s(1).set(eta=at, expires=(at + timedelta(hours=1)).isoformat())))
    assert (call.scheduled_at, call.expires_at) == (at, at + timedelta(hours=1))


def test_times_given_to_send_win_over_those_of_the_task() -> None:
    at = timezone.now() + timedelta(hours=1)
    call = seen(alone(task=brief.s().set(countdown=5), scheduled_at=at, expires_at=at + timedelta(hours=1)))
    assert (call.scheduled_at, call.expires_at) == (at, at + timedelta(hours=1))


# Headers, and who sends


@every_send_variant
def test_headers_reach_the_message_at_every_attempt(send: SendVariant, broker: Broker) -> None:
    call = send(task=add.s(1).set(headers={"tenant": "acme", "both": 1}), headers={"user": 7, "both": 2})
    wanted = {"tenant": "acme", "user": 7, "both": 2}
    assert seen(call).headers == wanted
    assert engine.lose([held(call)], OSError(), is_crash=False)
    messages = [each.headers for each in broker.take() if each.headers["id"] == str(call.id)]
    assert len({headers[TICKET_HEADER] for headers in messages}) == 2
    assert [{name: headers[name] for name in wanted} for headers in messages] == [wanted, wanted]


def test_a_call_sent_by_a_task_names_it_as_its_parent(broker: Broker) -> None:
    sent = sender.apply(task_id="the-sender")
    message = published(broker)
    assert message.headers["id"] == sent.result
    assert (message.headers["parent_id"], message.headers["root_id"]) == ("the-sender", "the-sender")
    alone(task=add.s(1))
    message = published(broker)
    assert (message.headers["parent_id"], message.headers["root_id"]) == (None, message.headers["id"])


def test_an_eager_call_has_its_headers_and_options() -> None:
    make_app("eager", task_always_eager=True).set_current()
    got: list[Any] = []

    @shared_task(name="tests.signature.look", bind=True)
    def look(self: Any) -> None:
        got.append((self.request.headers["tenant"], self.request.ignore_result, self.request.delivery_info["priority"]))

    alone(task=look.s().set(headers={"tenant": "acme"}, ignore_result=True, priority=5))
    assert got == [("acme", True, 5)]
