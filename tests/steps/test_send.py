"""Send: what is written, and when it goes."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

import arrow
import pytest
from celery import shared_task
from django.db import DataError, connection, transaction
from django.utils import timezone
from kombu import Producer

from dispatcher.errors import CallInvalid
from dispatcher.models import CallQueue
from dispatcher.request import Call
from dispatcher.states import OnLimit, State
from tests.builders import T0, committed, key, seen, slots_of
from tests.steps.conftest import Broker, make_app
from tests.steps.send_variants import SendVariant, alone, every_send_variant

pytestmark = [committed, pytest.mark.django]


@shared_task(name="tests.by_itself", queue="its_own")
def by_itself() -> None: ...


# What is written


@every_send_variant
def test_a_sent_call_is_returned_as_it_is_stored(send: SendVariant) -> None:
    key("api")
    call = send(
        task="shop.charge",
        args=[1, "two", None, {"three": [3.5, True]}],
        kwargs={"emoji": "😀", "text": "ä\\u0000"},
        keys={"api": 2},
        queue="charges",
        priority=7,
        expires_at=T0,
        on_limit="drop",
        retry={"max_attempts": 5},
        meta={"order": 1},
    )
    stored = seen(call)
    moved_on = {"ticket", "state", "dispatched_at", "published_at"}
    # Within a transaction the lane is made after the commit.
    moved_on |= {"lane_id", "placement", "key_costs"} if call.lane_id is None else set()
    for field in (each.attname for each in CallQueue._meta.concrete_fields if each.attname not in moved_on):
        assert getattr(call, field) == getattr(stored, field), field
    assert (stored.task, stored.queue, stored.priority, stored.on_limit) == ("shop.charge", "charges", 7, "drop")
    assert stored.args == [1, "two", None, {"three": [3.5, True]}]
    assert stored.kwargs == {"emoji": "😀", "text": "ä\\u0000"}
    assert stored.costs == {"api": 2}
    assert stored.retry["max_attempts"] == 5
    assert (stored.meta, stored.expires_at, stored.attempt, stored.errors) == ({"order": 1}, T0, 0, [])


@every_send_variant
def test_what_is_left_out_is_empty(send: SendVariant) -> None:
    stored = seen(send(task="t"))
    assert (stored.args, stored.kwargs, stored.meta, stored.costs, stored.call_data) == ([], {}, {}, {}, None)
    assert (stored.queue, stored.priority, stored.on_limit, stored.retry) == ("celery", 0, OnLimit.WAIT, None)
    assert (stored.scheduled_at, stored.expires_at, stored.result, stored.error) == (None, None, None, None)


def test_ids_are_uuids_of_version_7_in_order_of_sending() -> None:
    sent = [alone(task="t") for _ in range(3)] + CallQueue.objects.send_many([Call(task="t")] * 3)
    assert {(call.id.version, call.id.variant) for call in sent} == {(7, UUID(int=0x8 << 60).variant)}
    assert all(earlier.id < later.id for earlier, later in pairwise(sent))
    assert all(earlier.position < later.position for earlier, later in pairwise(sent))
    age = timezone.now() - datetime.fromtimestamp((sent[0].id.int >> 80) / 1000, tz=UTC)
    assert timedelta(0) <= age + timedelta(milliseconds=1) < timedelta(minutes=1)


@every_send_variant
def test_a_task_may_be_given_by_itself(send: SendVariant) -> None:
    call = seen(send(task=by_itself))
    assert (call.task, call.queue) == ("tests.by_itself", "its_own")


def test_the_queue_is_where_celery_routes_the_task() -> None:
    make_app("routed", task_routes={"shop.*": {"queue": "shop"}}, task_default_queue="others").set_current()
    assert alone(task="shop.charge").queue == "shop"
    assert alone(task="other").queue == "others"
    assert alone(task="shop.charge", queue="mine").queue == "mine"


@every_send_variant
def test_call_data_is_run_by_the_built_in_task(send: SendVariant, broker: Broker) -> None:
    wanted = {"method": "post", "params": {"url": "https://example.com", "json": {"a": 1}}}
    call = seen(send(call_data=wanted, queue="http"))
    assert (call.task, call.call_data, call.args, call.kwargs) == ("dispatcher.call", wanted, [], {})
    (message,) = broker.take("http")
    assert message.headers["task"] == "dispatcher.call"
    assert message.payload[0] == [wanted]


@every_send_variant
def test_a_time_may_be_an_arrow(send: SendVariant) -> None:
    stored = seen(send(task="t", scheduled_at=arrow.get(T0).to("Asia/Tokyo"), expires_at=arrow.get(T0).shift(days=1)))
    assert (stored.scheduled_at, stored.expires_at) == (T0, T0 + timedelta(days=1))
    assert stored.state == State.SCHEDULED


@every_send_variant
def test_a_key_named_twice_is_spent_once(send: SendVariant) -> None:
    api = key("api", concurrency=5)
    assert slots_of(send(task="t", keys=["api", "api"])) == {api.id: 1}


# When it goes


@every_send_variant
def test_a_pass_that_fails_after_the_commit_does_not_fail_the_send(
    send: SendVariant, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr(Producer, "publish", fail)
    assert seen(send(task="t")).published_at is None


# Outside of the caller's transaction


@contextmanager
def rolled_back() -> Iterator[None]:
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


@contextmanager
def broken() -> Iterator[None]:
    with suppress(DataError), transaction.atomic(), connection.cursor() as cursor:
        try:
            cursor.execute("SELECT 1 / 0")
        finally:
            yield


@contextmanager
def without_autocommit() -> Iterator[None]:
    transaction.set_autocommit(False)
    try:
        yield
        transaction.rollback()
    finally:
        transaction.set_autocommit(True)


@pytest.mark.parametrize("within", [nullcontext, rolled_back, broken, without_autocommit])
def test_a_call_that_is_sent_outside_of_the_transaction_is_committed_at_once(within: Any) -> None:
    api = key("api", concurrency=1)
    with within():
        call = CallQueue.objects.send("shop.report", keys=["api"], outside=True)
        many = CallQueue.objects.send_many([Call("shop.report", outside=True)] * 2)
    assert (seen(call).state, slots_of(call)) == (State.DISPATCHED, {api.id: 1})
    assert CallQueue.objects.count() == 1 + len(many)


def test_calls_that_are_written_together_are_all_sent_outside_or_none() -> None:
    with pytest.raises(CallInvalid, match="outside"):
        CallQueue.objects.send_many([Call("shop.report", outside=True), Call("shop.report")])
    assert not CallQueue.objects.exists()


@pytest.mark.django_db
def test_within_the_transaction_of_a_test_case_a_call_that_is_sent_outside_sees_what_the_test_has_written() -> None:
    key("api")
    call = CallQueue.objects.send("shop.report", keys=["api"], outside=True)
    assert seen(call).placement["names"] == ["api"]
