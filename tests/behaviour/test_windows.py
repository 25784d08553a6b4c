"""Windows: no period, wherever it begins, holds more starts than the rate allows; unstarted calls count, too."""

from datetime import timedelta
from random import Random

import pytest

from dispatcher import api
from dispatcher.states import State
from tests.drive import Drive

MARGIN = 0.05
"""The setting `margin`: a start counts for that much longer than the period."""


def start(drive: Drive, count: int = 1, **fields: int) -> None:
    """Send so many calls of the key, start them, and let them end."""
    drive.send_many(count, "api")
    runs = drive.take(count)
    assert len(runs) == count
    for run in runs:
        drive.end(run)


def starts(drive: Drive, room: int = 9) -> int:
    """Return how many of the calls that wait a worker starts."""
    return len(drive.take(room))


def test_no_more_calls_start_than_the_rate_allows_though_they_end(drive: Drive) -> None:
    drive.key(rate=(3, 60))
    drive.send_many(9, "api")
    assert len(drive.drain(room=9)) == 3
    drive.forward(59)
    assert drive.drain(room=9) == []


@pytest.mark.parametrize(("after", "started"), [(10, 0), (10 + MARGIN - 0.001, 0), (10 + MARGIN, 1)])
def test_a_start_counts_for_a_period_and_the_margin_and_no_longer(drive: Drive, after: float, started: int) -> None:
    drive.key(rate=(1, 10))
    drive.send_many(2, "api")
    (run,) = drive.take(2)
    drive.end(run)
    drive.forward(after)
    assert starts(drive) == started


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_call_that_is_sent_within_the_margin_starts_at_its_end(drive: Drive, *, is_alone: bool) -> None:
    drive.key(rate=(1, 10))
    start(drive)
    drive.forward(10 + MARGIN - 0.001)
    call = drive.send("api") if is_alone else drive.send_many(2, "api")[0]
    assert starts(drive) == 0
    drive.forward(0.001)
    assert [run.call for run in drive.take(9)] == [call.id]


def test_an_end_within_the_margin_starts_nothing(drive: Drive) -> None:
    drive.key("api", concurrency=1)
    drive.key("other", rate=(1, 10))
    drive.send_many(2, "api", "other")
    runs = drive.take()
    drive.clock.forward(10 + MARGIN - 0.001)
    assert drive.take(ends=runs) == []
    drive.forward(0.001)
    assert starts(drive) == 1


def test_the_window_slides_from_one_start_to_the_next(drive: Drive) -> None:
    drive.key(rate=(2, 10))
    start(drive)
    drive.forward(4)
    start(drive)
    drive.send_many(4, "api")
    assert starts(drive) == 0
    drive.forward(6 + MARGIN)
    assert starts(drive) == 1
    drive.forward(3.9)
    assert starts(drive) == 0
    drive.forward(0.1 + MARGIN)
    assert starts(drive) == 1


def test_calls_go_in_lanes_of_their_own_when_time_opens_their_window(drive: Drive) -> None:
    drive.key(rate=(2, 60))
    drive.key("tenant")
    start(drive, 2)
    calls = [drive.send("api"), drive.send("api", "tenant")]
    assert starts(drive) == 0
    drive.forward(60 + MARGIN)
    assert {run.call for run in drive.take(2)} == {call.id for call in calls}


def test_a_window_keeps_the_rate_and_wastes_less_than_a_fiftieth(drive: Drive) -> None:
    """The audit holds that no window of 10 s, wherever it begins, has more than 10."""
    drive.key(rate=(10, 10))
    drive.send_many(80, "api")
    count = 0
    for _ in range(5):
        count += len(drive.drain(room=10))
        drive.forward(10.19)
    assert count == 50
    dice = Random(7)  # noqa: S311 -- not for secrets
    while drive.drain(room=4) or drive.clock.now.second % 5:
        drive.forward(dice.choice((0.004, 0.3, 1.2, 2.5)))


def test_rate_and_concurrency_of_a_key_hold_together(drive: Drive) -> None:
    drive.key(rate=(3, 60), concurrency=2)
    drive.send_many(5, "api")
    runs = drive.take(5)
    assert len(runs) == 2
    (third,) = drive.take(5, ends=runs)
    assert drive.take(5, ends=[third]) == []


# What is admitted and has not started (deliveries that admit before a start: the broker's alone)


@pytest.mark.deliveries("broker")
def test_what_is_admitted_and_not_started_holds_its_room_in_the_window(drive: Drive) -> None:
    drive.key(rate=(2, 10))
    calls = [*drive.send_many(1, "api"), *(drive.send("api") for _ in range(3)), *drive.send_many(1, "api")]
    drive.forward(250)
    assert drive.states(calls) == [State.DISPATCHED] * 2 + [State.AVAILABLE] * 3


@pytest.mark.deliveries("broker")
def test_a_window_slides_from_the_starts_and_not_from_the_admissions(drive: Drive) -> None:
    drive.key(rate=(2, 10))
    *_, third = drive.send_many(3, "api")
    for wait in (4, 3):
        drive.forward(wait)
        assert starts(drive, 1) == 1
    drive.forward(4)
    assert drive.state(third) == State.AVAILABLE
    drive.forward(3 + MARGIN)
    assert starts(drive) == 1


@pytest.mark.deliveries("direct", "http")
def test_the_admitted_calls_of_another_queue_hold_their_room_in_a_window(drive: Drive) -> None:
    drive.key(rate=(3, 60))
    broker = drive.beside("broker")
    admitted = broker.send_many(2, "api")
    drive.send_many(5, "api")
    (run,) = drive.take(5)
    drive.end(run)
    # The start of the one is forgotten; the others have not started yet.
    drive.forward(61)
    assert len(drive.take(5)) == 1
    assert drive.states(admitted) == [State.DISPATCHED] * 2
    assert len(broker.take(2)) == 2
    # Now they count for a period, from their starts on.
    drive.forward(59)
    assert starts(drive) == 0
    drive.forward(2)
    assert starts(drive) == 3


# Rates that change


def test_a_rate_that_is_given_later_counts_from_then_on(drive: Drive) -> None:
    drive.key()
    start(drive)
    drive.limit(rate=(2, 60))
    start(drive, 2)
    drive.send("api")
    drive.forward(59)
    assert starts(drive) == 0
    drive.forward(2)
    assert starts(drive) == 1


def test_an_override_with_a_shorter_period_forgets_nothing_of_the_longer_one(drive: Drive) -> None:
    drive.key(rate=(20, 60))
    drive.override(rate=(4, 1), seconds=15.5)
    for _ in range(5):
        start(drive, 4)
        drive.forward(3)
    drive.forward(1)
    drive.send_many(4, "api")
    assert starts(drive) == 0, "those of the last minute count again"
    drive.forward(44.1)
    assert starts(drive) == 4


def test_an_override_with_a_longer_period_forgets_nothing_of_its_own(drive: Drive) -> None:
    drive.key(rate=(10, 1))
    drive.override(rate=(10, 60), seconds=3_600)
    for _ in range(10):
        start(drive)
        drive.forward(5)
    drive.send("api")
    drive.forward(9)
    assert starts(drive) == 0
    drive.forward(1.1)
    assert starts(drive) == 1


def test_the_starts_of_an_override_without_a_rate_count_when_it_has_ended(drive: Drive) -> None:
    drive.key(rate=(2, 60))
    drive.override(rate=None, seconds=30)
    start(drive, 3)
    drive.forward(31)
    drive.send("api")
    assert starts(drive) == 0
    drive.forward(29.1)
    assert starts(drive) == 1


def test_the_starts_of_an_override_count_when_a_person_ends_it(drive: Drive) -> None:
    drive.key(rate=(2, 60))
    drive.override(rate=(5, 60), seconds=1_000)
    start(drive, 5)
    api.end_override("api")
    drive.send("api")
    assert starts(drive) == 0
    drive.forward(60 + MARGIN)
    assert starts(drive) == 1


def test_a_dearer_call_does_not_put_off_what_a_cheaper_one_waits_for(drive: Drive) -> None:
    drive.key(rate=(2, 60))
    drive.key("other")
    start(drive)
    drive.forward(30)
    start(drive)
    cheap = drive.send("api", priority=1)
    assert starts(drive) == 0
    drive.send(costs={"api": 2, "other": 1})
    assert starts(drive) == 0
    drive.forward(30 + MARGIN)
    assert [run.call for run in drive.take(2)] == [cheap.id]


def test_a_start_that_lies_ahead_counts_from_its_time_on(drive: Drive) -> None:
    drive.key("pace", throttle=(10, 1))
    drive.key("api", rate=(1, 10))
    drive.send_many(2, "pace")
    paced = drive.send("pace", "api")
    runs = drive.take(3)
    while len(runs) < 3:
        drive.forward(0.1)
        runs += drive.take(3)
    (start_at,) = (run.start_at for run in runs if run.call == paced.id)
    drive.send("api")
    drive.clock.set(start_at + timedelta(seconds=10))
    drive.tick()
    assert starts(drive) == 0
    drive.forward(MARGIN)
    assert starts(drive) == 1
