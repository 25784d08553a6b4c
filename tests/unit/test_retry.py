"""How long a failed call waits for its next attempt."""

import random
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.errors import PolicyInvalid
from dispatcher.limits.retry import Retry

TICK = timedelta(microseconds=1)
durations = st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=366))

retries = st.builds(
    Retry,
    max_attempts=st.integers(1, 32_767),
    initial_interval=durations,
    backoff_coefficient=st.floats(1, 100) | st.integers(1, 100),
    max_interval=durations,
    jitter=st.booleans(),
    non_retryable_errors=st.lists(st.sampled_from(["ValueError", "KeyError"])).map(tuple),
)
attempts = st.integers(1, 32_767)


@given(retries)
def test_a_retry_policy_survives_being_written_and_read(retry: Retry) -> None:
    assert Retry.parse(retry.as_json()) == retry


@given(retries, attempts, st.randoms())
def test_no_wait_is_negative_or_longer_than_the_longest(retry: Retry, attempt: int, rng: random.Random) -> None:
    assert timedelta(0) <= retry.delay(attempt, rng) <= retry.max_interval


@given(retries, attempts, st.randoms())
def test_jitter_takes_at_most_half_of_the_wait(retry: Retry, attempt: int, rng: random.Random) -> None:
    whole = retry.delay(attempt)
    assert whole / 2 - TICK <= retry.delay(attempt, rng) <= whole + TICK


@given(retries, attempts)
def test_a_wait_is_never_shorter_than_the_one_before(retry: Retry, attempt: int) -> None:
    assert retry.delay(attempt) <= retry.delay(attempt + 1)


@pytest.mark.parametrize(
    ("attempt", "seconds"), [(1, 1), (2, 2), (3, 4), (9, 256), (10, 300), (1_000, 300), (32_767, 300), (2**31 - 1, 300)]
)
def test_the_wait_doubles_up_to_five_minutes_by_default(attempt: int, seconds: int) -> None:
    assert Retry().delay(attempt) == timedelta(seconds=seconds)


def test_a_gentle_back_off_reaches_its_longest_wait_too() -> None:
    gentle = Retry(initial_interval=timedelta(seconds=1), backoff_coefficient=1.05, max_interval=timedelta(hours=1))
    assert gentle.delay(100).total_seconds() == pytest.approx(1.05**99)
    assert gentle.delay(1_000) == timedelta(hours=1)


@pytest.mark.parametrize(
    ("given_retry", "field"),
    [
        ({"max_attempts": 0}, "retry.max_attempts"),
        ({"max_attempts": 2**31}, "retry.max_attempts"),
        ({"max_attempts": True}, "retry.max_attempts"),
        ({"max_attempts": "3"}, "retry.max_attempts"),
        ({"attempts": 3}, "retry.attempts"),
        ({"initial_interval": "soon"}, "retry.initial_interval"),
        ({"initial_interval": -1}, "retry.initial_interval"),
        ({"max_interval": "P1M"}, "retry.max_interval"),
        ({"max_interval": -1}, "retry.max_interval"),
        ({"max_interval": "P999999999D"}, "retry.max_interval"),
        ({"backoff_coefficient": 0.5}, "retry.backoff_coefficient"),
        ({"backoff_coefficient": 101}, "retry.backoff_coefficient"),
        ({"backoff_coefficient": float("nan")}, "retry.backoff_coefficient"),
        ({"backoff_coefficient": "2"}, "retry.backoff_coefficient"),
        ({"jitter": 1}, "retry.jitter"),
        ({"non_retryable_errors": "ValueError"}, "retry.non_retryable_errors"),
        ({"non_retryable_errors": [ValueError]}, "retry.non_retryable_errors"),
        ({"non_retryable_errors": 5}, "retry.non_retryable_errors"),
        (3, "retry"),
        ("exponential", "retry"),
        ([], "retry"),
    ],
)
def test_a_retry_policy_that_is_wrong_is_refused_by_its_field(given_retry: Mapping[str, Any], field: str) -> None:
    with pytest.raises(PolicyInvalid) as caught:
        Retry.parse(given_retry)
    assert caught.value.field == field
