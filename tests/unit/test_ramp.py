"""The ramp: after a block, what is in flight grows step by step, and not all starts at once."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.limits.policy import RAMP_STEPS, UNLIMITED, AdmissionTuning, Use, ramp_opening, ramp_room

END = datetime(2030, 1, 1, tzinfo=UTC)
RAMP = timedelta(seconds=8)
TUNING = AdmissionTuning(ramp=RAMP)


@pytest.mark.parametrize(("seconds", "room"), [(0, 1), (0.9, 1), (1, 2), (2.5, 4), (7.9, 128), (8, UNLIMITED)])
def test_the_room_doubles_with_every_step(seconds: float, room: int) -> None:
    assert ramp_room(END, Use(), END + timedelta(seconds=seconds), TUNING) == room


def test_what_is_in_flight_counts() -> None:
    now = END + timedelta(seconds=2)
    assert [ramp_room(END, Use(held=held), now, TUNING) for held in (0, 3, 4, 9)] == [4, 1, 0, 0]


@pytest.mark.parametrize("tuning", [TUNING, AdmissionTuning()])
def test_without_a_block_or_a_ramp_there_is_room(tuning: AdmissionTuning) -> None:
    block = None if tuning is TUNING else END
    assert ramp_room(block, Use(held=50), END, tuning) == UNLIMITED
    assert ramp_opening(block, Use(held=50), 1, END, tuning) is None


@given(
    held=st.integers(0, 400),
    cost=st.integers(1, 40),
    elapsed=st.timedeltas(timedelta(0), timedelta(seconds=9)),
    ramp=st.timedeltas(timedelta(microseconds=8), timedelta(minutes=5)),
)
def test_the_opening_is_the_first_moment_with_room(held: int, cost: int, elapsed: timedelta, ramp: timedelta) -> None:
    use, now, tuning = Use(held=held), END + elapsed, AdmissionTuning(ramp=ramp)
    at = ramp_opening(END, use, cost, now, tuning)
    if at is None:
        assert cost <= ramp_room(END, use, now, tuning)
    else:
        assert now < at <= END + ramp + timedelta(microseconds=RAMP_STEPS)
        assert cost <= ramp_room(END, use, at, tuning)
        assert cost > ramp_room(END, use, at - timedelta(microseconds=1), tuning)
