"""Durations and policies: as they are written and read."""

from datetime import timedelta
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.errors import PolicyInvalid
from dispatcher.limits.durations import format_duration, parse_duration
from dispatcher.limits.policy import Policy, Rate

TICK = timedelta(microseconds=1)
durations = st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=366))
periods = st.timedeltas(min_value=timedelta(milliseconds=1), max_value=timedelta(days=366))
rates = st.builds(Rate, limit=st.integers(1, 2**31 - 1), period=periods)
policies = st.builds(
    Policy, concurrency=st.none() | st.integers(0, 2**31 - 1), rate=st.none() | rates, throttle=st.none() | rates
)


# Durations


@given(durations)
def test_a_duration_survives_being_written_and_read(value: timedelta) -> None:
    assert parse_duration(format_duration(value)) == value


READ: dict[object, float] = {
    **dict.fromkeys(["PT1M", "minute"], 60),
    **dict.fromkeys(["PT1H30M", "PT90M"], 5400),
    **dict.fromkeys(["P1D", "day"], 86_400),
    "PT0.5S": 0.5,
    "P1DT1S": 86_401,
    "P2W": 1_209_600,
    "second": 1,
    "hour": 3600,
    10: 10,
    0.25: 0.25,
    timedelta(seconds=3): 3,
}


@pytest.mark.parametrize("text", READ)
def test_every_way_of_writing_a_duration_is_read(text: object) -> None:
    assert parse_duration(text) == timedelta(seconds=READ[text])


@pytest.mark.parametrize(
    ("seconds", "text"), [(90, "PT1M30S"), (0, "PT0S"), (172_800, "P2D"), (90_000, "P1DT1H"), (0.05, "PT0.05S")]
)
def test_a_duration_is_written_in_the_largest_whole_units(seconds: float, text: str) -> None:
    assert format_duration(timedelta(seconds=seconds)) == text


@pytest.mark.parametrize(
    "value",
    [
        "P1M", "P1Y", "PT", "P", "", "1M", "pt1m", "PT1M ", "-PT1M", "PT-1M", "PT1.5M", "PT0.1234567S",
        "weekly", True, None, [], float("inf"), float("nan"), 1e300, "P999999999999W", b"PT1M",
    ],
)  # fmt: skip
def test_what_is_no_duration_is_refused_by_its_field(value: object) -> None:
    with pytest.raises(PolicyInvalid, match=r"^rate\.period: .*ISO 8601") as caught:
        parse_duration(value, "rate.period")
    assert caught.value.field == "rate.period"


# Policies


@given(policies)
def test_a_policy_survives_being_written_and_read(policy: Policy) -> None:
    assert Policy.parse(policy.as_json()) == policy


@given(rates)
def test_a_rate_is_read_from_a_pair_a_mapping_and_itself(rate: Rate) -> None:
    for form in (rate, (rate.limit, rate.period), [rate.limit, format_duration(rate.period)], rate.as_json()):
        assert Rate.parse(form, "rate") == rate


@given(rates)
def test_spacing_is_never_shorter_than_the_throttle_says(rate: Rate) -> None:
    exact = Fraction(rate.period // TICK, rate.limit)
    assert exact <= rate.spacing // TICK < exact + 1


WRONG: dict[str, list[Any]] = {
    "policy.concurrency": [{"concurrency": value} for value in (-1, 1.0, True, "4", 2**31)],
    "policy.concurency": [{"concurency": 1}],
    "policy.rate": [{"rate": value} for value in (10, {"limit": 10}, {"limit": 10, "period": 1, "burst": 2})],
    "policy.rate.limit": [{"rate": {"limit": value, "period": 1}} for value in (0, 2**31, True)],
    "policy.rate.period": [
        {"rate": (1, period)} for period in ("P1M", 0, timedelta(microseconds=999), timedelta(days=367))
    ],
    "policy.throttle.limit": [{"throttle": {"limit": 0.5, "period": 1}}],
    "policy.throttle.period": [{"throttle": (1, -1)}],
    "policy": ["concurrency", None, 5, [("concurrency", 5)]],
}


@pytest.mark.parametrize(
    ("given_policy", "field"), [(each, field) for field in WRONG for each in WRONG[field]], ids=str
)
def test_a_policy_that_is_wrong_is_refused_by_its_field(given_policy: Any, field: str) -> None:
    with pytest.raises(PolicyInvalid) as caught:
        Policy.parse(given_policy)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")


def test_a_policy_without_limits_limits_nothing() -> None:
    policy = Policy.parse({})
    assert policy.is_unlimited
    assert policy.fits(2**31 - 1)
