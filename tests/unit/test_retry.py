"""How long a failed call waits for its next attempt."""

import random
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher import ending
from dispatcher.errors import PolicyInvalid
from dispatcher.limits.retry import Retry
from dispatcher.states import State

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
def test_a_wait_grows_up_to_the_longest_and_jitter_takes_at_most_half_of_it(
    retry: Retry, attempt: int, rng: random.Random
) -> None:
    whole, shortened = retry.delay(attempt), retry.delay(attempt, rng)
    assert timedelta(0) <= shortened <= retry.max_interval
    assert whole / 2 - TICK <= shortened <= whole + TICK
    assert whole <= retry.delay(attempt + 1)


@pytest.mark.parametrize(
    ("attempt", "seconds"), [(1, 1), (2, 2), (3, 4), (9, 256), (10, 300), (1_000, 300), (32_767, 300), (2**31 - 1, 300)]
)
def test_the_wait_doubles_up_to_five_minutes_by_default(attempt: int, seconds: int) -> None:
    assert Retry().delay(attempt) == timedelta(seconds=seconds)


def test_a_gentle_back_off_reaches_its_longest_wait_too() -> None:
    gentle = Retry(initial_interval=timedelta(seconds=1), backoff_coefficient=1.05, max_interval=timedelta(hours=1))
    assert gentle.delay(100).total_seconds() == pytest.approx(1.05**99)
    assert gentle.delay(1_000) == timedelta(hours=1)


WRONG: dict[str, list[Any]] = {
    "retry.max_attempts": [0, 2**31, True, "3"],
    "retry.attempts": [3],
    "retry.initial_interval": ["soon", -1],
    "retry.max_interval": ["P1M", -1, "P999999999D"],
    "retry.backoff_coefficient": [0.5, 101, float("nan"), "2"],
    "retry.jitter": [1],
    "retry.non_retryable_errors": ["ValueError", [ValueError], 5],
}
CASES = [({field.removeprefix("retry."): value}, field) for field, values in WRONG.items() for value in values]


@pytest.mark.parametrize(("given_retry", "field"), [*CASES, (3, "retry"), ("exponential", "retry"), ([], "retry")])
def test_a_retry_policy_that_is_wrong_is_refused_by_its_field(given_retry: Any, field: str) -> None:
    with pytest.raises(PolicyInvalid) as caught:
        Retry.parse(given_retry)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("asked", "attempt", "crashes", "state"),
    [
        (None, 1, 0, State.DISCARDED),
        (True, 7, 0, State.RETRYABLE),
        (False, 1, 0, State.DISCARDED),
        (None, 1, 1, State.RETRYABLE),
        (None, 2, 1, State.DISCARDED),
    ],
)
def test_where_the_task_decides_the_policy_counts_lost_processes_alone(
    asked: object, attempt: int, crashes: int, state: State
) -> None:
    policy = Retry.parse({"decided_by": "task", "max_attempts": 2}).as_json()
    may_retry = None if asked is None else bool(asked)
    ended = ending.failed(ValueError(), attempt=attempt, policy=policy, may_retry=may_retry, crashes=crashes)
    assert ended.state == state
