"""Send: what is refused, what is written, and when it goes."""

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import arrow
import pytest
from celery import shared_task
from django.db import connection, transaction
from django.utils import timezone

from dispatcher import engine, sql
from dispatcher.calls import Call
from dispatcher.errors import (
    CallInvalid,
    CallNeverRuns,
    CallTooLarge,
    DispatcherError,
    PolicyInvalid,
    UnknownKey,
)
from dispatcher.events import policy_ignored
from dispatcher.models import CallQueue, Lane, RateLimitKey, Slot
from dispatcher.states import OnLimit, State
from tests.builders import T0, committed, key, seen, slots_of, waiting
from tests.steps.conftest import Broker, make_app

pytestmark = committed

AHEAD = timedelta(hours=1)


@shared_task(name="tests.by_itself", queue="its_own")
def by_itself() -> None: ...


def alone(**fields: Any) -> CallQueue:
    return CallQueue.objects.send(**fields)


def within_a_transaction(**fields: Any) -> CallQueue:
    with transaction.atomic():
        return CallQueue.objects.send(**fields)


def among_many(**fields: Any) -> CallQueue:
    return CallQueue.objects.send_many([Call(task="first"), Call(**fields), Call(task="last")])[1]


Way = Callable[..., CallQueue]
every_way = pytest.mark.parametrize("send", [alone, within_a_transaction, among_many])


def circle() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


# What is refused: the field, and words of the problem or its remedy
REFUSED: list[tuple[Mapping[str, Any], str, str]] = [
    ({}, "task", "either a task or call_data"),
    ({"task": "t", "call_data": {"method": "get"}}, "task", "either a task or call_data"),
    ({"task": ""}, "task", "its name"),
    ({"task": 5}, "task", "its name"),
    ({"task": "t" * 256}, "task", "1 to 255 characters"),
    ({"task": "t\0"}, "task", "1 to 255 characters"),
    ({"task": "t", "queue": ""}, "queue", "1 to 255 characters"),
    ({"task": "t", "queue": 5}, "queue", "1 to 255 characters"),
    ({"task": "t", "queue": "\ud800"}, "queue", "1 to 255 characters"),
    ({"task": "t", "args": "text"}, "args", "for one argument give [argument]"),
    ({"task": "t", "args": {"a": 1}}, "args", "must be a list"),
    ({"task": "t", "args": [{1, 2}]}, "args[0]", "set is not JSON"),
    ({"task": "t", "args": [1, [Decimal(1)]]}, "args[1][0]", "Decimal is not JSON; send its id or a text"),
    ({"task": "t", "args": [b"raw"]}, "args[0]", "bytes is not JSON"),
    ({"task": "t", "args": [float("nan")]}, "args[0]", "finite number or None"),
    ({"task": "t", "args": [float("-inf")]}, "args[0]", "finite number or None"),
    ({"task": "t", "args": ["a\0b"]}, "args[0]", "NUL"),
    ({"task": "t", "args": ["\ud800"]}, "args[0]", "surrogate"),
    ({"task": "t", "args": circle()}, "args" + "[0]" * 64, "deeper than 64 levels"),
    ({"task": "t", "kwargs": [("a", 1)]}, "kwargs", "must be a mapping"),
    ({"task": "t", "kwargs": {"user": {"born": date(2000, 1, 1)}}}, "kwargs.user.born", "date is not JSON"),
    ({"task": "t", "kwargs": {"list": [{"deep": object()}]}}, "kwargs.list[0].deep", "object is not JSON"),
    ({"task": "t", "kwargs": {"counts": {1: "one"}}}, "kwargs.counts", "the name 1 is not a text"),
    ({"task": "t", "kwargs": {"a\0": 1}}, "kwargs", "NUL"),
    ({"task": "t", "meta": "text"}, "meta", "must be a mapping"),
    ({"task": "t", "meta": {"of": uuid4()}}, "meta.of", "UUID is not JSON"),
    ({"call_data": "get"}, "call_data", "must be a mapping"),
    ({"call_data": {"method": "get", "params": {"url": object()}}}, "call_data.params.url", "object is not JSON"),
    ({"task": "t", "keys": "api"}, "keys", 'for one key give ["name"]'),
    ({"task": "t", "keys": 5}, "keys", "list of names or {name: cost}"),
    ({"task": "t", "keys": ["api", 5]}, "keys", "5 is not a key name"),
    ({"task": "t", "keys": [["api"]]}, "keys", "is not a key name"),
    ({"task": "t", "keys": [{"name": "api"}]}, "keys", "is not a key name"),
    ({"task": "t", "keys": [None]}, "keys", "None is not a key name"),
    ({"task": "t", "keys": [""]}, "keys", "a letter or digit first"),
    ({"task": "t", "keys": [":api"]}, "keys", "a letter or digit first"),
    ({"task": "t", "keys": ["a b"]}, "keys", "a letter or digit first"),
    ({"task": "t", "keys": ["api\n"]}, "keys", "a letter or digit first"),
    ({"task": "t", "keys": ["é"]}, "keys", "a letter or digit first"),
    ({"task": "t", "keys": ["a" * 256]}, "keys", "1 to 255 characters"),
    ({"task": "t", "keys": {"api": 0}}, "keys['api']", "whole number from 1"),
    ({"task": "t", "keys": {"api": -1}}, "keys['api']", "whole number from 1"),
    ({"task": "t", "keys": {"api": 1.5}}, "keys['api']", "whole number from 1"),
    ({"task": "t", "keys": {"api": True}}, "keys['api']", "whole number from 1"),
    ({"task": "t", "keys": {"api": "1"}}, "keys['api']", "whole number from 1"),
    ({"task": "t", "keys": {"api": 2**31}}, "keys['api']", "to 2147483647"),
    ({"task": "t", "priority": 101}, "priority", "from -100 to 100"),
    ({"task": "t", "priority": -101}, "priority", "from -100 to 100"),
    ({"task": "t", "priority": "high"}, "priority", "from -100 to 100"),
    ({"task": "t", "priority": None}, "priority", "from -100 to 100"),
    ({"task": "t", "priority": True}, "priority", "from -100 to 100"),
    ({"task": "t", "scheduled_at": datetime(2030, 1, 1)}, "scheduled_at", "naive"),  # noqa: DTZ001
    ({"task": "t", "scheduled_at": "2030-01-01T00:00:00Z"}, "scheduled_at", "datetime with a time zone"),
    ({"task": "t", "scheduled_at": date(2030, 1, 1)}, "scheduled_at", "datetime with a time zone"),
    ({"task": "t", "scheduled_at": 60}, "scheduled_at", "datetime with a time zone"),
    ({"task": "t", "expires_at": datetime(2030, 1, 1)}, "expires_at", "django.utils.timezone"),  # noqa: DTZ001
    ({"task": "t", "expires_at": timedelta(hours=1)}, "expires_at", "datetime with a time zone"),
    ({"task": "t", "scheduled_at": T0, "expires_at": T0}, "expires_at", "not after scheduled_at"),
    ({"task": "t", "on_limit": "retry"}, "on_limit", "wait, reschedule, drop"),
    ({"task": "t", "retry": {"max_attempts": 0}}, "retry.max_attempts", "from 1 to 32767"),
    ({"task": "t", "retry": {"tries": 3}}, "retry.tries", "unknown"),
    ({"task": "t", "retry": 3}, "retry", "is not a retry policy"),
    ({"task": "t", "rate_limit": {"concurrency": 1}}, "rate_limit.key", "required"),
    ({"task": "t", "rate_limit": {"key": "a b"}}, "keys", "is not a key name"),
    ({"task": "t", "rate_limit": {"key": "new", "limit": 1}}, "rate_limit.limit", "unknown"),
    ({"task": "t", "rate_limit": {"key": "new", "rate": {"limit": 1}}}, "rate_limit.rate", "is not a rate"),
    (
        {"task": "t", "rate_limit": {"key": "new", "rate": {"limit": 1, "period": "P1M"}}},
        "rate_limit.rate.period",
        "no months or years",
    ),
    ({"task": "t", "rate_limit": {"key": "new", "on_limit": "stop"}}, "on_limit", "wait, reschedule, drop"),
    ({"task": "t", "rate_limit": "api"}, "rate_limit", "must be a mapping"),
]


@pytest.mark.django_db
@pytest.mark.parametrize(("fields", "field", "words"), REFUSED)
def test_a_field_that_is_wrong_is_named_with_its_remedy_and_nothing_is_written(
    fields: Mapping[str, Any], field: str, words: str
) -> None:
    for send in (alone, among_many):
        with pytest.raises(DispatcherError) as caught:
            send(**fields)
        assert isinstance(caught.value, CallInvalid | PolicyInvalid)
        assert caught.value.field == field
        assert str(caught.value).startswith(f"{field}: ")
        assert words in str(caught.value)
    assert not CallQueue.objects.exists()
    assert not RateLimitKey.objects.exists()
    assert not Lane.objects.exists()


@every_way
def test_a_key_that_does_not_exist_is_refused_and_nothing_is_written(send: Way) -> None:
    key("api")
    with pytest.raises(UnknownKey, match=r"no rate limit key named 'apl', 'zzz'\. Declare it first") as caught:
        send(task="t", keys=["zzz", "api", "apl"])
    assert caught.value.names == ["apl", "zzz"]
    assert caught.value.field == "keys"
    assert not CallQueue.objects.exists()


@every_way
def test_a_key_that_a_call_brings_is_not_made_if_another_does_not_exist(send: Way) -> None:
    with pytest.raises(UnknownKey):
        send(task="t", keys=["typo"], rate_limit={"key": "new", "concurrency": 1})
    assert not RateLimitKey.objects.exists()
    assert not CallQueue.objects.exists()


@every_way
@pytest.mark.parametrize("limits", [{"concurrency": 4}, {"rate": (4, "PT1M")}], ids=["concurrency", "rate"])
def test_a_cost_that_can_never_fit_is_refused(send: Way, limits: Mapping[str, Any]) -> None:
    key("api", **limits)
    with pytest.raises(CallNeverRuns, match=r"a cost of 5 can never run .*; lower the cost or raise") as caught:
        send(task="t", keys={"api": 5})
    assert caught.value.field == "keys['api']"
    assert not CallQueue.objects.exists()
    assert send(task="t", keys={"api": 4}).costs == {"api": 4}


@every_way
def test_a_cost_that_never_fits_the_policy_that_it_brings_is_refused(send: Way) -> None:
    with pytest.raises(CallNeverRuns):
        send(task="t", keys={"new": 2}, rate_limit={"key": "new", "concurrency": 1})
    assert not RateLimitKey.objects.exists()


def test_a_throttle_and_a_concurrency_of_0_refuse_no_cost() -> None:
    key("paced", throttle=(1, 1))
    key("stopped", concurrency=0)
    assert alone(task="t", keys={"paced": 5, "stopped": 5}).costs == {"paced": 5, "stopped": 5}


def test_a_payload_over_the_limit_is_refused_by_its_size_as_json(settings: Any) -> None:
    settings.DISPATCHER = {"max_payload_bytes": 100}
    with pytest.raises(CallTooLarge, match=r"take 101 bytes .*max_payload_bytes \(100\); store .* a reference"):
        alone(task="t", args=["é" * 46 + "a"])
    assert alone(task="t", args=["é" * 46])
    with pytest.raises(CallTooLarge):
        alone(task="t", args=["a" * 30], kwargs={"a": "a" * 30}, meta={"a": "a" * 30})


def test_an_integer_too_long_for_a_text_is_refused_by_its_field() -> None:
    with pytest.raises(CallInvalid, match=r"^args\[0\]: "):
        alone(task="t", args=[10**5000])


# What is written


@every_way
def test_a_sent_call_is_returned_as_it_is_stored(send: Way) -> None:
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
    for field in (each.attname for each in CallQueue._meta.concrete_fields if each.attname not in moved_on):
        assert getattr(call, field) == getattr(stored, field), field
    assert (stored.task, stored.queue, stored.priority, stored.on_limit) == ("shop.charge", "charges", 7, "drop")
    assert stored.args == [1, "two", None, {"three": [3.5, True]}]
    assert stored.kwargs == {"emoji": "😀", "text": "ä\\u0000"}
    assert stored.costs == {"api": 2}
    assert stored.retry["max_attempts"] == 5
    assert (stored.meta, stored.expires_at, stored.attempt, stored.errors) == ({"order": 1}, T0, 0, [])


@every_way
def test_what_is_left_out_is_empty(send: Way) -> None:
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


@every_way
def test_a_task_may_be_given_by_itself(send: Way) -> None:
    call = seen(send(task=by_itself))
    assert (call.task, call.queue) == ("tests.by_itself", "its_own")


def test_the_queue_is_where_celery_routes_the_task() -> None:
    make_app("routed", task_routes={"shop.*": {"queue": "shop"}}, task_default_queue="others").set_current()
    assert alone(task="shop.charge").queue == "shop"
    assert alone(task="other").queue == "others"
    assert alone(task="shop.charge", queue="mine").queue == "mine"


@every_way
def test_call_data_is_run_by_the_built_in_task(send: Way, broker: Broker) -> None:
    wanted = {"method": "post", "params": {"url": "https://example.com", "json": {"a": 1}}}
    call = seen(send(call_data=wanted, queue="http"))
    assert (call.task, call.call_data, call.args, call.kwargs) == ("dispatcher.call", wanted, [], {})
    (message,) = broker.take("http")
    assert message.headers["task"] == "dispatcher.call"
    assert message.payload[0] == [wanted]


@every_way
def test_a_time_may_be_an_arrow(send: Way) -> None:
    stored = seen(send(task="t", scheduled_at=arrow.get(T0).to("Asia/Tokyo"), expires_at=arrow.get(T0).shift(days=1)))
    assert (stored.scheduled_at, stored.expires_at) == (T0, T0 + timedelta(days=1))
    assert stored.state == State.SCHEDULED


@every_way
def test_a_call_for_later_is_scheduled_and_one_for_an_earlier_time_goes_now(send: Way) -> None:
    assert seen(send(task="t", scheduled_at=timezone.now() + AHEAD)).state == State.SCHEDULED
    assert seen(send(task="t", scheduled_at=timezone.now() - AHEAD)).state == State.DISPATCHED


@every_way
def test_a_key_named_twice_is_spent_once(send: Way) -> None:
    api = key("api", concurrency=5)
    assert slots_of(send(task="t", keys=["api", "api"])) == {api.id: 1}


# Many


def test_many_are_written_in_the_order_given() -> None:
    sent = CallQueue.objects.send_many(Call(task="t", args=[number], priority=number % 3) for number in range(50))
    assert [call.args for call in sent] == [[number] for number in range(50)]
    stored = CallQueue.objects.order_by("position").values_list("args", flat=True)
    assert list(stored) == [[number] for number in range(50)]


def test_many_are_written_all_or_none() -> None:
    key("api", concurrency=1)
    for wrong in (Call(task="t", keys=["typo"]), Call(task="t", keys={"api": 2}), Call(task="t", args=[object()])):
        with pytest.raises(DispatcherError):
            CallQueue.objects.send_many([Call(task="t", keys=["api"]), wrong])
        assert not CallQueue.objects.exists()


def test_none_are_many_too() -> None:
    assert CallQueue.objects.send_many([]) == []


def test_many_of_different_lanes_go_at_once() -> None:
    for name in ("a", "b"):
        key(name, concurrency=2)
    wanted = [Call(task="t", keys=names, queue=queue) for names in (["a"], ["b"], ["a", "b"]) for queue in "xy"]
    sent = CallQueue.objects.send_many(wanted)
    assert len({call.lane_id for call in sent}) == 6
    for name in ("a", "b"):
        assert Slot.objects.filter(key__name=name).count() == 2


# Keys


def test_declare_never_changes_a_key_that_exists() -> None:
    first = RateLimitKey.objects.declare("api", concurrency=4, rate=(10, "PT1S"))
    again = RateLimitKey.objects.declare("api", concurrency=9, throttle={"limit": 1, "period": 1})
    assert again.pk == first.pk
    assert (again.concurrency, again.rate_limit, again.rate_period) == (4, 10, timedelta(seconds=1))
    assert (again.throttle_limit, again.throttle_period) == (None, None)


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["", "a b", "-a", "api\n", "a" * 256, 5, None])
def test_a_key_with_a_bad_name_is_not_declared(name: Any) -> None:
    with pytest.raises(CallInvalid, match=r"^keys: "):
        RateLimitKey.objects.declare(name, concurrency=1)
    assert not RateLimitKey.objects.exists()


def test_a_key_with_a_bad_policy_is_not_declared() -> None:
    with pytest.raises(PolicyInvalid, match=r"^policy\.rate\.limit: "):
        RateLimitKey.objects.declare("api", rate=(0, 1))
    assert not RateLimitKey.objects.exists()


@every_way
def test_a_call_may_bring_the_policy_of_a_new_key(send: Way) -> None:
    policy = {
        "key": "api",
        "concurrency": 2,
        "rate": {"limit": 5, "period": "PT1M"},
        "throttle": {"limit": 4, "period": "PT1S"},
        "on_limit": "reschedule",
    }
    call = send(task="t", rate_limit=policy)
    made = RateLimitKey.objects.get()
    assert (made.name, made.concurrency, made.rate_limit, made.throttle_limit) == ("api", 2, 5, 4)
    assert (made.rate_period, made.throttle_period) == (timedelta(minutes=1), timedelta(seconds=1))
    assert seen(call).on_limit == OnLimit.RESCHEDULE
    assert Lane.objects.get(id=call.lane_id).key_ids == [made.id]
    assert send(task="t", rate_limit=policy, on_limit="drop").on_limit == OnLimit.DROP


@every_way
def test_a_policy_that_differs_from_the_stored_one_is_ignored_and_reported(
    send: Way, caplog: pytest.LogCaptureFixture
) -> None:
    stored = key("api", concurrency=2)
    reported: list[dict[str, Any]] = []

    def report(**facts: Any) -> None:
        reported.append(facts)

    policy_ignored.connect(report)
    try:
        with caplog.at_level(logging.WARNING, logger="dispatcher"):
            send(task="t", rate_limit={"key": "api", "concurrency": 2})
            send(task="t", keys=["api"])
            assert not reported
            assert not caplog.records
            send(task="t", rate_limit={"key": "api", "concurrency": 3})
    finally:
        policy_ignored.disconnect(report)
    stored.refresh_from_db()
    assert stored.concurrency == 2
    (facts,) = reported
    assert (facts["key"], facts["given"].concurrency, facts["stored"].concurrency) == ("api", 3, 2)
    assert "'api' differs" in caplog.text


def test_the_first_of_two_policies_for_a_new_key_stands_and_the_second_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wanted = [Call(task="t", rate_limit={"key": "api", "concurrency": number}) for number in (1, 2)]
    with caplog.at_level(logging.WARNING, logger="dispatcher"):
        CallQueue.objects.send_many(wanted)
    assert RateLimitKey.objects.get().concurrency == 1
    assert "'api' differs" in caplog.text


@every_way
def test_a_key_that_the_settings_declare_is_made_when_first_seen(send: Way, settings: Any) -> None:
    settings.DISPATCHER = {
        "keys": {
            "tenant:*": {"concurrency": 2},
            "tenant:big:*": {"concurrency": 8},
            "exact": {"rate": {"limit": 1, "period": "minute"}},
            "queue:*": {"concurrency": 5},
        }
    }
    call = send(task="t", keys=["tenant:acme", "tenant:big:corp", "exact"], queue="mail")
    made = dict(RateLimitKey.objects.values_list("name", "concurrency"))
    expected = {"tenant:acme": 2, "tenant:big:corp": 8, "exact": None, "queue:mail": 5}
    assert made.items() >= expected.items()
    assert set(made) - set(expected) <= {"queue:celery"}
    assert len(slots_of(call)) == 4
    with pytest.raises(UnknownKey):
        send(task="t", keys=["tenants:acme"])


# When it goes


@every_way
def test_a_call_with_room_is_dispatched_and_published_at_once(send: Way, broker: Broker) -> None:
    api = key("api", concurrency=1, rate=(5, 1))
    call = seen(send(task="t", keys=["api"], args=[1], kwargs={"a": 2}, queue="now"))
    assert call.state == State.DISPATCHED
    assert call.published_at is not None
    assert slots_of(call) == {api.id: 1}
    (message,) = broker.take("now")
    assert message.headers["id"] == str(call.id)
    assert message.headers["dispatcher_ticket"] == str(call.ticket)
    assert message.payload[:2] == [[1], {"a": 2}]


def test_nothing_goes_before_the_commit(broker: Broker) -> None:
    with transaction.atomic():
        call = CallQueue.objects.send("t")
        assert seen(call).state == State.AVAILABLE
        assert not broker.take()
    assert seen(call).state == State.DISPATCHED
    assert len(broker.take()) == 1


def test_a_transaction_that_rolls_back_leaves_no_call_and_no_message(broker: Broker) -> None:
    key("api")
    with transaction.atomic():
        CallQueue.objects.send("t", keys=["api"])
        CallQueue.objects.send_many([Call(task="t")] * 3)
        transaction.set_rollback(True)
    with transaction.atomic():
        with transaction.atomic():
            CallQueue.objects.send("t", keys=["api"])
            transaction.set_rollback(True)
        kept = CallQueue.objects.send("t")
    assert list(CallQueue.objects.values_list("id", flat=True)) == [kept.id]
    assert [message.headers["id"] for message in broker.take()] == [str(kept.id)]


def test_calls_of_one_transaction_go_together_after_its_commit(broker: Broker) -> None:
    key("api", concurrency=2)
    with transaction.atomic():
        sent = [CallQueue.objects.send("t", keys=["api"], args=[number]) for number in range(3)]
    assert [seen(call).state for call in sent] == [State.DISPATCHED, State.DISPATCHED, State.AVAILABLE]
    assert [message.payload[0] for message in broker.take()] == [[0], [1]]


@every_way
def test_a_broker_that_is_down_does_not_fail_the_send(send: Way, broker: Broker, settings: Any) -> None:
    settings.DISPATCHER = {"publish_pause": 0}
    broker.go_down()
    call = seen(send(task="t"))
    assert (call.state, call.published_at) == (State.DISPATCHED, None)


@every_way
def test_a_pass_that_fails_after_the_commit_does_not_fail_the_send(
    send: Way, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr(broker.app.amqp, "send_task_message", fail)
    assert seen(send(task="t")).published_at is None


# The way of a lone call: it goes in the statement that writes it, unless something stands in its way


def _in_the_way() -> list[Any]:
    def pause() -> None:
        key("api", concurrency=9)
        engine.pause("api")

    def block() -> None:
        key("api", concurrency=9)
        engine.block("api", AHEAD)

    def override() -> None:
        key("api", concurrency=9)
        engine.override("api", until=timezone.now() + AHEAD, concurrency=0)

    def fill() -> None:
        key("api", concurrency=2)
        CallQueue.objects.send_many([Call(task="t", keys=["api"])] * 2)

    def fill_the_window() -> None:
        key("api", rate=(2, "PT1H"))
        CallQueue.objects.send_many([Call(task="t", keys=["api"])] * 2)

    def stop() -> None:
        key("api", concurrency=0)

    def full_queue() -> None:
        key("api")
        key("queue:celery", concurrency=0)

    def dear_call_ahead() -> None:
        key("api", concurrency=3)
        CallQueue.objects.send_many([Call(task="t", keys={"api": cost}) for cost in (2, 2)])

    def other_lane_has_its_turn() -> None:
        key("api", concurrency=4)
        key("other")
        CallQueue.objects.send("t", keys={"api": 2})
        CallQueue.objects.send("t", keys={"api": 3, "other": 1})
        CallQueue.objects.send("t", keys=["api"])

    return [
        pause,
        block,
        override,
        fill,
        fill_the_window,
        stop,
        full_queue,
        dear_call_ahead,
        other_lane_has_its_turn,
    ]


@every_way
@pytest.mark.parametrize("prepare", _in_the_way(), ids=lambda prepare: prepare.__name__)
def test_a_call_waits_where_something_stands_in_its_way(send: Way, prepare: Callable[[], None], broker: Broker) -> None:
    prepare()
    # The second one finds its lane, and so takes the short way where there is one.
    engine.cancel([send(task="t", keys=["api"]).id])
    broker.take()
    call = seen(send(task="t", keys=["api"]))
    assert (call.state, call.ticket) == (State.AVAILABLE, None)
    assert not slots_of(call)
    assert str(call.id) not in [message.headers["id"] for message in broker.take()]


@every_way
def test_a_call_does_not_pass_those_that_wait_in_its_lane(send: Way) -> None:
    key("api", concurrency=1)
    first = waiting("api")
    second = send(task="noop", keys=["api"])
    assert second.lane_id == first.lane_id
    assert (seen(first).state, seen(second).state) == (State.DISPATCHED, State.AVAILABLE)


def test_a_call_does_not_pass_a_higher_priority_that_is_awake() -> None:
    key("api", concurrency=1)
    higher = waiting("api", priority=5)
    Lane.objects.filter(id=higher.lane_id).update(is_awake=True)
    assert seen(alone(task="t", keys=["api"], queue="celery")).state == State.AVAILABLE


@every_way
def test_a_throttled_call_goes_at_once_if_its_start_is_near(send: Way) -> None:
    key("api", throttle=(1, "PT1H"))
    assert seen(send(task="t", keys=["api"])).state == State.DISPATCHED
    assert seen(send(task="t", keys=["api"])).state == State.AVAILABLE


def test_a_sender_that_is_not_prepared_for_prepared_statements_sends_too(settings: Any) -> None:
    settings.DISPATCHER = {"prepared_statements": False, "pipeline": False}
    assert seen(alone(task="t")).state == State.DISPATCHED
    assert connection.in_atomic_block is False


@pytest.mark.parametrize(
    ("setting", "is_behind_a_pooler", "prepares"),
    [(None, False, True), (None, True, False), (True, True, True), (False, False, False)],
)
def test_statements_are_prepared_unless_the_setting_or_a_pooler_says_otherwise(
    settings: Any, monkeypatch: pytest.MonkeyPatch, *, setting: bool | None, is_behind_a_pooler: bool, prepares: bool
) -> None:
    settings.DISPATCHER = {"prepared_statements": setting}
    monkeypatch.setitem(connection.settings_dict, "DISABLE_SERVER_SIDE_CURSORS", is_behind_a_pooler)
    connection.ensure_connection()
    monkeypatch.setattr(connection.connection, "prepare_threshold", None)
    sql._cursors.pop(connection.connection, None)  # noqa: SLF001 -- as on a new connection
    # Nothing is sent: behind a pooler it would not be understood.
    sql._cursor(sql.connection(), "tell_time", SimpleNamespace)  # noqa: SLF001
    assert (connection.connection.prepare_threshold is not None) == prepares
