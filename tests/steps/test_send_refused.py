"""Send: what is refused, by its field and with its remedy; nothing is written then."""

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from celery import Celery, shared_task
from django.utils.translation import gettext_lazy

from dispatcher.errors import (
    CallInvalid,
    CallNeverRuns,
    CallTooLarge,
    ConfigurationError,
    DispatcherError,
    PolicyInvalid,
    UnknownKey,
)
from dispatcher.models import CallQueue, Lane, RateLimitKey
from dispatcher.request import Call
from tests.builders import T0, committed, key
from tests.steps.conftest import app
from tests.steps.send_variants import SendVariant, alone, among_many, every_send_variant

pytestmark = [committed, pytest.mark.django]


AHEAD = timezone(timedelta(hours=1))
"""Its first day began before the calendar did."""


@shared_task(name="tests.refused.charge")
def charge(order: int) -> int:
    return order


def circle() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


# The field, and words of the problem or its remedy.
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
    ({"task": "t", "args": [{1, 2}]}, "args[0]", "set is not JSON"),
    ({"task": "t", "args": [1, [{Decimal(1)}]]}, "args[1][0]", "set is not JSON; send its id or a text"),
    ({"task": "t", "meta": {"raw": b"raw"}}, "meta.raw", "bytes is not JSON"),
    ({"task": "t", "args": [gettext_lazy("a\0")]}, "args[0]", "NUL"),
    ({"task": "t", "args": [float("nan")]}, "args[0]", "finite number or None"),
    ({"task": "t", "args": ["a\0b"]}, "args[0]", "NUL"),
    ({"task": "t", "args": ["\ud800"]}, "args[0]", "surrogate"),
    ({"task": "t", "args": circle()}, "args" + "[0]" * 64, "deeper than 64 levels"),
    ({"task": "t", "kwargs": [("a", 1)]}, "kwargs", "must be a mapping"),
    ({"task": "t", "kwargs": {"user": {"born": timedelta(1)}}}, "kwargs.user.born", "timedelta is not JSON"),
    ({"task": "t", "kwargs": {"list": [{"deep": object()}]}}, "kwargs.list[0].deep", "object is not JSON"),
    ({"task": "t", "kwargs": {"counts": {1: "one"}}}, "kwargs.counts", "the name 1 is not a text"),
    ({"task": "t", "kwargs": {"a\0": 1}}, "kwargs", "NUL"),
    ({"task": "t", "meta": "text"}, "meta", "must be a mapping"),
    ({"call_data": "get"}, "call_data", "must be a mapping"),
    ({"call_data": {"method": "f", "params": {"url": object()}}}, "call_data.params.url", "object is not JSON"),
    ({"call_data": {}}, "call_data.method", 'give {"method": "post", "params": {"url": ...}}'),
    ({"call_data": {"method": 5}}, "call_data.method", "5 must be a name"),
    ({"call_data": {"metod": "post"}}, "call_data.metod", 'give {"method": "post"'),
    ({"call_data": {"method": "post"}}, "call_data.params.url", "name its address"),
    ({"call_data": {"method": "GET", "params": {"url": ""}}}, "call_data.params.url", "name its address"),
    ({"call_data": {"method": "f", "params": [1]}}, "call_data.params", "must be a mapping"),
    (
        {"task": "t", "countdown": 5},
        "countdown",
        "give scheduled_at=, a time with a zone; or give task.s(...).set(count",
    ),
    ({"task": "t", "eta": T0}, "eta", "give scheduled_at="),
    ({"task": "t", "expires": 5}, "expires", "give expires_at="),
    ({"task": "t", "key": "api"}, "key", 'give keys=["name"]'),
    ({"task": "t", "argz": [1]}, "argz", "did you mean args?"),
    ({"task": "t", "zzzzz": [1]}, "zzzzz", "known are task, args, kwargs"),
    ({"task": charge, "args": [1, 2]}, "args", "takes 1 positional argument but 2 were given"),
    ({"task": charge}, "args", "give the arguments that the task takes"),
    ({"task": "t", "keys": "api"}, "keys", 'for one key give ["name"]'),
    ({"task": "t", "keys": 5}, "keys", "list of names or {name: cost}"),
    ({"task": "t", "keys": ["api", 5]}, "keys", "5 is not a key name"),
    ({"task": "t", "keys": [["api"]]}, "keys", "is not a key name"),
    ({"task": "t", "keys": ["a b"]}, "keys", "a letter or digit first"),
    ({"task": "t", "keys": ["é"]}, "keys", "a letter or digit first"),
    ({"task": "t", "keys": {"api": 0}}, "keys['api']", "whole number from 1"),
    ({"task": "t", "keys": {"api": 1.5}}, "keys['api']", "whole number from 1"),
    ({"task": "t", "keys": {"api": True}}, "keys['api']", "whole number from 1"),
    ({"task": "t", "keys": {"api": 2**31}}, "keys['api']", "to 2147483647"),
    ({"task": "t", "priority": 101}, "priority", "from -100 to 100"),
    ({"task": "t", "priority": -101}, "priority", "from -100 to 100"),
    ({"task": "t", "priority": None}, "priority", "from -100 to 100"),
    ({"task": "t", "scheduled_at": datetime(2030, 1, 1)}, "scheduled_at", "naive"),  # noqa: DTZ001
    ({"task": "t", "scheduled_at": "2030-01-01T00:00:00Z"}, "scheduled_at", "datetime with a time zone"),
    ({"task": "t", "scheduled_at": date(2030, 1, 1)}, "scheduled_at", "datetime with a time zone"),
    ({"task": "t", "expires_at": datetime(2030, 1, 1)}, "expires_at", "django.utils.timezone"),  # noqa: DTZ001
    ({"task": "t", "scheduled_at": T0, "expires_at": T0}, "expires_at", "not after scheduled_at"),
    ({"task": "t", "expires_at": datetime(2020, 1, 1, tzinfo=UTC)}, "expires_at", "is past (it is 20"),
    (
        {"task": "t", "scheduled_at": datetime.min.replace(tzinfo=AHEAD)},
        "scheduled_at",
        "from 0001-01-02 to 9999-12-30",
    ),
    ({"task": "t", "expires_at": datetime.max.replace(tzinfo=UTC)}, "expires_at", "from 0001-01-02 to 9999-12-30"),
    ({"task": "t", "on_limit": "retry"}, "on_limit", "wait, reschedule, drop"),
    ({"task": "t", "retry": {"max_attempts": 0}}, "retry.max_attempts", "from 1 to 2147483647"),
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


@every_send_variant
def test_a_key_that_does_not_exist_is_refused_and_nothing_is_written(send: SendVariant) -> None:
    key("api")
    with pytest.raises(
        UnknownKey, match=r"no rate limit key named 'apl', 'zzz'\. Did you mean 'api'\? Declare it first"
    ) as caught:
        send(task="t", keys=["zzz", "api", "apl"])
    assert caught.value.names == ["apl", "zzz"]
    assert caught.value.field == "keys"
    assert not CallQueue.objects.exists()


@every_send_variant
def test_a_key_that_does_not_exist_is_refused_with_the_one_that_was_meant(send: SendVariant, settings: Any) -> None:
    settings.DISPATCHER = {"keys": {"tenant:*": {"concurrency": 1}}}
    key("api.stripe.com")
    with pytest.raises(UnknownKey, match=r"named 'api\.strip\.com'\. Did you mean 'api\.stripe\.com'\? Declare"):
        send(task="t", keys=["api.strip.com"])
    with pytest.raises(UnknownKey, match=r"Did you mean 'tenant:\*'\?"):
        send(task="t", keys=["tennant:acme"])


WRONG_LISTS: list[tuple[Any, str, int | None]] = [
    ([("t", [1])], "calls", None),
    ([Call(task="t"), ("t", [1])], "calls", 1),
    ([Call(task="t"), Call(task="t", priority=101), Call(task="t")], "priority", 1),
    ([Call(task="t"), Call(task="t"), Call(task="t", retry={"tries": 1})], "retry.tries", 2),
    (Call(task="t"), "calls", None),
]


@pytest.mark.parametrize(("calls", "field", "index"), WRONG_LISTS, ids=str)
def test_what_is_wrong_among_many_is_named_with_its_place(calls: Any, field: str, index: int | None) -> None:
    with pytest.raises(DispatcherError) as caught:
        CallQueue.objects.send_many(calls)
    assert isinstance(caught.value, CallInvalid | PolicyInvalid)
    assert (caught.value.field, caught.value.index) == (field, index)
    assert index is None or f"calls[{index}]" in str(caught.value)
    assert not CallQueue.objects.exists()


def test_arguments_by_place_are_refused_with_the_names_that_they_need() -> None:
    with pytest.raises(CallInvalid, match=r"^7: must be given by its name: args, kwargs"):
        CallQueue.objects.send(charge, 7)  # type: ignore[call-arg, misc]
    with pytest.raises(CallInvalid, match=r"^7: must be given by its name: args, kwargs"):
        Call(charge, 7)  # type: ignore[call-arg, misc]
    assert Call(charge, args=[7]).task is charge


def test_a_call_that_is_saved_in_place_of_being_sent_is_refused() -> None:
    for save in (CallQueue(task="t").save, lambda: CallQueue.objects.create(task="t")):
        with pytest.raises(CallInvalid, match=r"^id: .* CallQueue\.objects\.send"):
            save()
    with pytest.raises(CallInvalid, match=r"CallQueue\.objects\.send"):
        CallQueue.objects.bulk_create([CallQueue(task="t")])
    assert not CallQueue.objects.exists()


@every_send_variant
def test_a_key_that_a_call_brings_is_not_made_if_another_does_not_exist(send: SendVariant) -> None:
    with pytest.raises(UnknownKey):
        send(task="t", keys=["typo"], rate_limit={"key": "new", "concurrency": 1})
    assert not RateLimitKey.objects.exists()
    assert not CallQueue.objects.exists()


@every_send_variant
@pytest.mark.parametrize("limits", [{"concurrency": 4}, {"rate": (4, "PT1M")}], ids=["concurrency", "rate"])
def test_a_cost_that_can_never_fit_is_refused(send: SendVariant, limits: Mapping[str, Any]) -> None:
    key("api", **limits)
    with pytest.raises(
        CallNeverRuns, match=r"a cost of 5 can never run: the (concurrency|rate) is 4.*; lower the cost or raise"
    ) as caught:
        send(task="t", keys={"api": 5})
    assert caught.value.field == "keys['api']"
    assert not CallQueue.objects.exists()
    assert send(task="t", keys={"api": 4}).costs == {"api": 4}


@every_send_variant
def test_a_cost_that_never_fits_the_policy_that_it_brings_is_refused(send: SendVariant) -> None:
    with pytest.raises(CallNeverRuns):
        send(task="t", keys={"new": 2}, rate_limit={"key": "new", "concurrency": 1})
    assert not RateLimitKey.objects.exists()


@every_send_variant
def test_a_cost_that_would_close_its_throttle_for_longer_than_a_year_is_refused(send: SendVariant) -> None:
    key("daily", throttle=(1, "P1D"))
    with pytest.raises(
        CallNeverRuns, match=r"367 can never run: under the throttle 1/P1D .* more than a year away; lower"
    ):
        send(task="t", keys={"daily": 367})
    assert send(task="t", keys={"daily": 366}).costs == {"daily": 366}


def test_a_throttle_and_a_concurrency_of_0_refuse_no_small_cost() -> None:
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


def test_a_process_without_a_celery_app_sends_nothing() -> None:
    Celery("default", fixups=[], set_as_current=False, loader="default").set_current()
    try:
        with pytest.raises(ConfigurationError, match=r"no Celery app.* Import your Celery app in the __init__\.py"):
            CallQueue.objects.send("t")
    finally:
        app.set_current()
    assert not CallQueue.objects.exists()
