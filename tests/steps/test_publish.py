"""Publish: what reaches the broker, what the broker refuses, and tasks that run in the sender."""

from datetime import timedelta
from typing import Any

import pytest
from amqp.exceptions import MessageNacked
from celery import shared_task
from django.db import connection, transaction
from kombu import Producer, Queue
from kombu.exceptions import ChannelError
from redis.exceptions import OutOfMemoryError

from dispatcher import api, ending, engine
from dispatcher.lifecycle import publish, take
from dispatcher.lifecycle.finish import Ended
from dispatcher.lifecycle.take import Taker
from dispatcher.models import CallQueue
from dispatcher.request import Call
from dispatcher.states import State
from project.services import Services
from tests.builders import admitted, at, committed, key, seen, started, ticket_of, waiting
from tests.faults import refusing
from tests.steps.conftest import Broker, make_app

pytestmark = [committed, pytest.mark.pooler]

ran: list[Any] = []
"""What the tasks of these tests were called with."""


@shared_task(name="tests.publish.note")
def note(value: Any) -> Any:
    ran.append(value)
    return value


@pytest.fixture(autouse=True)
def _patient(settings: Any) -> None:
    settings.DISPATCHER = {"publish_pause": 0, "publish_after": 10}
    ran.clear()


@pytest.fixture
def eagerly() -> None:
    """Run tasks in the sender's own process."""
    make_app("eager", task_always_eager=True).set_current()


# To the broker


@pytest.mark.parametrize(("is_end", "waits"), [(False, "off"), (True, "on")])
def test_the_commit_of_a_trip_waits_for_the_disk_unless_it_only_dispatches(*, is_end: bool, waits: str) -> None:
    call = started()
    ended = Ended(call_id=call.id, ticket=ticket_of(call), claim_id=None, ending=ending.completed(None))
    left = waiting()
    with transaction.atomic(), connection.cursor() as cursor:
        taken = take.take(Taker(queues=["celery"], becomes=State.DISPATCHED), [ended] * is_end, room=1)
        assert [each.id for each in taken.dispatched] == [left.id]
        cursor.execute("SHOW synchronous_commit")
        assert cursor.fetchone() == (waits,)


# When the broker is down


@pytest.fixture
def clock(settings: Any, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time by which a broker and its queues rest, for 5 s; nothing rests yet."""
    settings.DISPATCHER = {"publish_pause": 5}
    clock = [0.0]
    monkeypatch.setattr(publish, "monotonic", lambda: clock[0])
    monkeypatch.setattr(publish._Rest, "until", 0.0)  # noqa: SLF001 -- put back after the test
    monkeypatch.setattr(publish._Rest, "queues", {})  # noqa: SLF001 -- put back after the test
    return clock


def test_a_broker_that_is_down_is_left_alone_for_a_while(broker: Broker, clock: list[float]) -> None:
    broker.go_down()
    call = admitted()
    assert publish.publish([call]) == 0
    broker.come_back()
    clock[0] = 4.9
    assert publish.publish([call]) == 0
    assert publish.unpublished(now=at(3600)) == []
    clock[0] = 5.0
    assert publish.publish([call]) == 1


@pytest.fixture
def breaking(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """Return the faults by which the next messages break their connection, after one that went well."""
    faults: list[BaseException] = []
    send = Producer.publish

    def send_or_break(*args: Any, **kwargs: Any) -> None:
        if faults:
            raise faults.pop(0)
        send(*args, **kwargs)

    monkeypatch.setattr(Producer, "publish", send_or_break)
    assert publish.publish([admitted()], now=at(0)) == 1
    return faults


def test_a_kept_connection_that_broke_is_replaced_and_the_rest_is_published(breaking: list[BaseException]) -> None:
    breaking.append(BrokenPipeError())
    calls = [admitted() for _ in range(3)]
    assert publish.publish(calls, now=at(1)) == 3
    assert [seen(call).published_at for call in calls] == [at(1)] * 3


@pytest.mark.parametrize("faults", [[BrokenPipeError(), BrokenPipeError()], [TimeoutError()]], ids=["twice", "late"])
def test_a_broker_that_breaks_its_new_connection_or_does_not_answer_is_away(
    breaking: list[BaseException], faults: list[BaseException]
) -> None:
    breaking += faults
    assert publish.publish([admitted()]) == 0
    assert breaking == []


# When the broker refuses a call


def test_a_broker_that_refuses_is_connected_again_for_the_next_pass(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connection() -> object:
        with broker.app.producer_or_acquire() as producer:
            return producer.connection.connection

    refusing(monkeypatch, OutOfMemoryError())
    publish.publish([admitted()])
    before = connection()
    publish.publish([admitted()])
    assert connection() is before
    publish.publish([admitted(queue="full")])
    assert connection() is not before


def test_what_was_refused_is_not_offered_again_for_a_while_and_the_rest_is(
    broker: Broker, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing(monkeypatch, MessageNacked())
    refused, other = admitted(queue="full"), admitted()
    assert publish.publish([refused]) == 0
    clock[0] = 4.9
    assert [call.id for call in publish.unpublished(now=at(3600))] == [other.id]
    clock[0] = 5.0
    assert [call.id for call in publish.unpublished(now=at(3600))] == [refused.id, other.id]


def test_more_refused_calls_than_a_pass_takes_leave_others_their_turn(
    broker: Broker, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DISPATCHER = {"publish_pause": 60, "batch": 2}
    monkeypatch.setattr(publish._Rest, "queues", {})  # noqa: SLF001 -- put back after the test
    refusing(monkeypatch, MessageNacked())
    calls = [admitted(queue=queue, now=at(number)) for number, queue in enumerate(["full", "full", "full", "celery"])]
    engine.tick(now=at(60))
    assert [seen(call).published_at for call in calls] == [None] * 4
    engine.tick(now=at(61))
    assert [seen(call).published_at for call in calls] == [None, None, None, at(61)]


def test_a_queue_of_another_kind_at_the_broker_refuses_its_calls_only(services: Services) -> None:
    app = make_app("clash", broker=services.broker_url, task_queues=[Queue("tests.clash"), Queue("tests.good")])
    with app.connection_for_write() as connection:
        channel = connection.default_channel
        if connection.transport.driver_type == "redis":
            channel.client.set("tests.clash", "no list")
        else:
            channel.queue_declare("tests.clash", durable=True, auto_delete=False, arguments={"x-max-length": 1})
        app.set_current()
        calls = [admitted(queue=queue) for queue in ("tests.clash", "tests.good", "tests.clash", "tests.good")]
        try:
            assert publish.publish(calls, now=at(1)) == 2
            assert [seen(call).published_at for call in calls] == [None, at(1), None, at(1)]
        finally:
            for queue in ("tests.clash", "tests.good"):
                channel.queue_delete(queue)


def test_a_queue_that_the_settings_do_not_name_refuses_its_calls_only(services: Services) -> None:
    queues = [Queue("tests.named")]
    app = make_app("strict", broker=services.broker_url, task_create_missing_queues=False, task_queues=queues)
    app.set_current()
    calls = [admitted(queue=queue) for queue in ("tests.unheard", "tests.named")]
    assert publish.publish(calls, now=at(1)) == 1
    assert [seen(call).published_at for call in calls] == [None, at(1)]
    with app.connection_for_write() as connection:
        connection.default_channel.queue_delete("tests.named")


def test_a_sender_does_not_listen_for_results(broker: Broker) -> None:
    app = make_app("asking", backend="rpc://")
    app.set_current()
    assert publish.publish([admitted()]) == 1
    with app.connection_for_read() as connection, pytest.raises(ChannelError):
        connection.default_channel.queue_declare(app.thread_oid, passive=True)


# In the sender


@pytest.mark.usefixtures("eagerly")
def test_an_eager_task_waits_where_a_limit_stops_it() -> None:
    key("api", rate=(2, "PT1H"))
    key("paused", concurrency=0)
    CallQueue.objects.send(note, args=["stopped"], keys=["paused"])
    for number in range(3):
        CallQueue.objects.send(note, args=[number], keys=["api"])
    assert ran == [0, 1]
    api.limit("paused", {})
    assert ran == [0, 1, "stopped"]


@pytest.mark.usefixtures("eagerly", "direct")
def test_an_eager_task_of_a_direct_queue_runs_at_once() -> None:
    CallQueue.objects.send(note, args=["alone"], queue="mail")
    CallQueue.objects.send_many([Call(task=note, args=["among many"], queue="mail")])
    assert ran == ["alone", "among many"]


def test_after_a_start_of_the_database_workers_have_time_to_say_what_they_hold(settings: Any) -> None:
    call = admitted()
    CallQueue.objects.update(dispatched_at=at(-1_000_000_000))
    settings.DISPATCHER = {"heartbeat": timedelta(days=30_000), "run_lease": timedelta(days=90_000)}
    assert publish.unpublished() == []
    settings.DISPATCHER = {"heartbeat": timedelta(0)}
    assert [left.id for left in publish.unpublished()] == [call.id]
