"""Control: what people get wrong is named by its field, and changes nothing."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from dispatcher import api
from dispatcher.errors import CallInvalid, KeyNotFound, PolicyInvalid
from dispatcher.lifecycle import control
from dispatcher.limits.policy import Policy, stored
from dispatcher.models import RateLimitKey
from tests.builders import (
    SECOND,
    at,
    committed,
    key,
)

pytestmark = [committed, pytest.mark.django]


# Keys


@pytest.mark.parametrize(
    "verb",
    [
        api.pause,
        api.resume,
        lambda name: api.block(name, SECOND),
        lambda name: api.limit(name, {"concurrency": 1}),
        lambda name: api.override(name, until=at(60), concurrency=1),
    ],
    ids=["pause", "resume", "block", "limit", "override"],
)
def test_a_key_that_does_not_exist_is_named(verb: Callable[[str], None]) -> None:
    key("api")
    with pytest.raises(
        KeyNotFound, match=r"named 'apl'\. Did you mean 'api'\? See manage\.py rate_limit_status"
    ) as caught:
        verb("apl")
    assert caught.value.name == "apl"
    assert isinstance(caught.value, LookupError)


def test_a_limit_can_keep_those_that_it_does_not_name() -> None:
    row = key("api", concurrency=1, rate=(1, 1), throttle=(1, 1))
    control.limit("api", {"rate": (5, 60), "throttle": None}, keeps_others=True)
    row.refresh_from_db()
    assert stored(row) == Policy.parse({"concurrency": 1, "rate": (5, 60)})


@pytest.mark.parametrize("wrong", [{"concurrency": -1}, {"rate": 5}, {"speed": 1}, {"throttle": (1, "P1M")}], ids=str)
def test_limits_that_are_wrong_change_nothing(wrong: Any) -> None:
    key("api", concurrency=1)
    before = RateLimitKey.objects.values().get()
    with pytest.raises(PolicyInvalid):
        api.limit("api", wrong)
    with pytest.raises(PolicyInvalid):
        api.override("api", until=at(60), **wrong)
    assert RateLimitKey.objects.values().get() == before


def test_an_override_needs_a_time_with_a_zone() -> None:
    key("api")
    for until in (datetime(2030, 1, 1), None, "2030-01-01T00:00:00Z", SECOND):  # noqa: DTZ001
        with pytest.raises(PolicyInvalid, match=r"^until: "):
            api.override("api", until=until, concurrency=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("until", ["9999-12-31T23:59:59-05:00", "9999-12-31T23:59:59+00:00"])
def test_an_override_past_the_calendar_is_refused_since_no_pass_could_read_it(until: str) -> None:
    key("api")
    with pytest.raises(PolicyInvalid, match=r"^until: .* give a time from 0001-01-02 to 9999-12-30"):
        api.override("api", until=datetime.fromisoformat(until), concurrency=1)
    assert RateLimitKey.objects.get().override_until is None


@pytest.mark.parametrize("wait", [-SECOND, timedelta(days=367), timedelta.max])
def test_a_block_that_is_too_long_is_refused_with_its_remedy(wait: timedelta) -> None:
    key("api")
    with pytest.raises(PolicyInvalid, match=r"^wait: .* from 0 to 366 days; to stop a key for longer, pause it"):
        api.block("api", wait)
    assert RateLimitKey.objects.get().blocked_until is None


# Arguments that people get wrong


@pytest.mark.parametrize("verb", [api.cancel, api.retry, api.activate, api.run_now])
@pytest.mark.parametrize("wrong", ["abc", 5, [5], None, [None], {"id": 1}, b"0"], ids=str)
def test_what_is_no_call_is_refused_with_what_to_give(verb: Callable[[Any], Any], wrong: Any) -> None:
    with pytest.raises(CallInvalid, match=r"^calls: .* is no call; give a call, its id, or a list of these"):
        verb(wrong)


@pytest.mark.parametrize("wait", [60, 60.0, "PT1M", timedelta(minutes=1)], ids=str)
def test_a_block_takes_seconds(wait: Any) -> None:
    row = key("api")
    api.block("api", wait)
    row.refresh_from_db()
    assert timedelta(seconds=50) < row.blocked_until - timezone.now() < timedelta(seconds=70)


@pytest.mark.parametrize("wait", ["soon", None, -1, float("nan")], ids=str)
def test_a_block_for_no_time_is_refused_by_its_field(wait: Any) -> None:
    key("api")
    with pytest.raises(PolicyInvalid, match=r"^wait: "):
        api.block("api", wait)


def test_an_override_that_has_ended_before_it_began_is_refused() -> None:
    key("api")
    with pytest.raises(PolicyInvalid, match=r"^until: .* is past .* give a time to come"):
        api.override("api", until=timezone.now() - SECOND, concurrency=1)


@pytest.mark.parametrize("name", ["concurency", "rates"])
def test_a_limit_that_is_misspelt_is_refused_with_the_one_that_was_meant(name: str) -> None:
    with pytest.raises(PolicyInvalid, match=rf"^{name}: is not known here; did you mean (concurrency|rate)\?"):
        RateLimitKey.objects.declare("api", **{name: 1})
    assert not RateLimitKey.objects.exists()


@pytest.mark.parametrize("verb", [api.declare, api.limit, api.count_oversized], ids=lambda verb: str(verb.__name__))
def test_a_limit_that_is_given_by_its_name_is_refused_with_the_way_to_give_it(verb: Any) -> None:
    key("api", concurrency=1)
    with pytest.raises(PolicyInvalid, match=r"^concurrency: is not known here; limits are one mapping, such as \{"):
        verb("api", concurrency=3)
    assert RateLimitKey.objects.get().concurrency == 1


@pytest.mark.parametrize(("text", "period"), [("100/s", 1), ("100/m", 60), ("100/h", 3600)])
def test_a_rate_may_be_given_as_celery_writes_it(text: str, period: int) -> None:
    made = RateLimitKey.objects.declare("api", rate=text, throttle=text)
    assert (made.rate_limit, made.rate_period) == (100, timedelta(seconds=period))
    assert (made.throttle_limit, made.throttle_period) == (100, timedelta(seconds=period))


@pytest.mark.parametrize("text", ["100", "100/x", "m", "1.5/s", "100/m "])
def test_a_rate_that_celery_would_not_write_is_refused_with_its_notation(text: str) -> None:
    with pytest.raises(PolicyInvalid, match=r'^policy\.rate: .* or "100/m"'):
        RateLimitKey.objects.declare("api", rate=text)
