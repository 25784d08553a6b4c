"""Send: the keys of a call."""

import logging
from datetime import timedelta
from typing import Any

import pytest

from dispatcher.errors import (
    CallInvalid,
    PolicyInvalid,
    UnknownKey,
)
from dispatcher.models import CallQueue, Lane, RateLimitKey
from dispatcher.request import Call
from dispatcher.signals import policy_ignored
from dispatcher.states import OnLimit
from tests.builders import committed, key, seen, slots_of
from tests.steps.send_variants import SendVariant, every_send_variant

pytestmark = committed


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


@every_send_variant
def test_a_call_may_bring_the_policy_of_a_new_key(send: SendVariant) -> None:
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
    assert Lane.objects.get(id=seen(call).lane_id).key_ids == [made.id]
    assert send(task="t", rate_limit=policy, on_limit="drop").on_limit == OnLimit.DROP


@every_send_variant
def test_a_policy_that_differs_from_the_stored_one_is_ignored_and_reported(
    send: SendVariant, caplog: pytest.LogCaptureFixture
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


@every_send_variant
def test_a_key_that_the_settings_declare_is_made_when_first_seen(send: SendVariant, settings: Any) -> None:
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
