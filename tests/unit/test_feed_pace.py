"""The pace of a feed: how many calls it starts ahead of free processes."""

from types import SimpleNamespace
from typing import Any, Final

import pytest

from dispatcher.celery.feed_pace import Pace

SIZE: Final = 2


def ran(seconds: float) -> Any:
    return SimpleNamespace(accepted_at=10.0, ended_at=10.0 + seconds)


@pytest.fixture
def pace() -> Pace:
    """Return the pace of a feed whose tasks took a millisecond."""
    pace = Pace()
    pace.learn(ran(0.001))
    return pace


def test_only_tasks_that_were_short_are_started_ahead_up_to_eight_for_each_process(pace: Pace) -> None:
    assert Pace().ahead(SIZE) == 0
    assert pace.ahead(SIZE) == 16
    for _ in range(100):
        pace.learn(ran(1.0))
    assert pace.ahead(SIZE) == 0


def test_half_as_many_are_started_ahead_each_time_that_some_go_back_until_calls_end_again(pace: Pace) -> None:
    found = []
    for _ in range(6):
        pace.note_returned()
        found.append(pace.ahead(SIZE))
    assert found == [8, 4, 2, 1, 0, 0]
    for _ in range(60):
        pace.learn(ran(0.001))
    assert pace.ahead(SIZE) == 16


def test_a_throttle_or_a_full_key_stops_it_at_once(pace: Pace) -> None:
    pace.tighten()
    assert pace.ahead(SIZE) == 0
