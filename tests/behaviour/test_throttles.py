"""Throttles: consecutive starts are never closer than the throttle in force allows."""

from datetime import timedelta
from itertools import pairwise

import pytest

from dispatcher import api
from dispatcher.states import State
from tests.drive import Drive

FAST, SLOW = (10, 1), (1, 3_600)


def start(drive: Drive, name: str = "api", cost: int = 1) -> None:
    """Send a call of the key, start it, and let it end."""
    drive.send(costs={name: cost})
    (run,) = drive.take()
    drive.end(run)


def test_starts_keep_their_distance(drive: Drive) -> None:
    """The audit holds that no two starts are closer than a tenth of a second."""
    drive.key(throttle=FAST)
    calls = drive.send_many(8, "api")
    for _ in range(12):
        drive.drain(room=4)
        drive.forward(0.1)
    assert set(drive.states(calls)) == {State.COMPLETED}


def test_a_call_starts_no_earlier_than_its_time_and_no_later(drive: Drive) -> None:
    drive.key(throttle=(1, 10))
    start(drive)
    call = drive.send("api")
    assert drive.state(call) == State.AVAILABLE
    drive.forward(9)
    assert drive.take() == []
    drive.forward(1.02)
    (run,) = drive.take()
    assert run.call == call.id
    assert drive.clock.now <= run.start_at <= drive.clock.now + timedelta(seconds=0.05)


@pytest.mark.parametrize("name", ["api", "other"])
def test_an_end_starts_nothing_before_its_time(drive: Drive, name: str) -> None:
    for key in ("api", "other"):
        drive.key(key, concurrency=1 if key == "api" else None, throttle=(1, 10) if key == name else None)
    drive.send_many(2, "api", "other")
    runs = drive.take(2)
    drive.clock.forward(1)
    assert drive.take(2, ends=runs) == []
    assert drive.use("api") == 0
    drive.forward(9.02)
    assert len(drive.take(2)) == 1


@pytest.mark.deliveries("direct", "broker")
def test_a_start_that_lies_ahead_counts_in_its_window_from_its_time_on(drive: Drive) -> None:
    drive.key(rate=(2, 10), throttle=(5, 1))
    drive.send_many(4, "api")
    runs = drive.take(4)
    assert [run.start_at - drive.clock.now >= timedelta(seconds=0.2) for run in runs] == [False, True]
    drive.forward(1)
    for run in runs:
        drive.end(run)
    # The first one has left the window, the other has not.
    drive.forward(9.1)
    assert len(drive.take(4)) == 1


@pytest.mark.deliveries("direct", "broker")  # A call that is fetched over HTTP has started: its time is now.
def test_a_worker_gets_the_starts_of_the_horizon_each_with_its_time(drive: Drive) -> None:
    drive.key(throttle=FAST)
    drive.send_many(9, "api")
    runs = drive.take(9)
    times = [run.start_at for run in runs]
    assert 2 <= len(times) <= 3
    assert all(after - before >= timedelta(seconds=0.1) for before, after in pairwise(times))
    assert times[-1] <= drive.clock.now + timedelta(seconds=0.22)


def test_the_rate_and_the_throttle_of_a_key_hold_together(drive: Drive) -> None:
    drive.key(rate=(2, 60), throttle=(1, 5))
    drive.send_many(4, "api")
    count = 0
    for _ in range(4):
        count += len(drive.drain())
        drive.forward(5.02)
    assert count == 2


@pytest.mark.ojs
def test_a_throttle_is_shared_by_the_queues_of_all_deliveries(drive: Drive) -> None:
    drive.key(throttle=(1, 10))
    others = [drive.beside(name) for name in ("direct", "broker", "http")]
    for each in [drive, *others]:
        each.send("api")
    for _ in range(4):
        assert sum(len(each.take()) for each in [drive, *others]) == 1
        drive.forward(10.02)


# The throttle in force


@pytest.mark.parametrize("change", ["corrected", "removed", "overridden"])
def test_a_throttle_that_was_loosened_lets_the_next_call_start_at_once(drive: Drive, change: str) -> None:
    drive.key(throttle=SLOW)
    start(drive)
    call = drive.send("api")
    drive.forward(1)
    assert drive.take() == []
    match change:
        case "corrected":
            drive.limit(throttle=FAST)
        case "removed":
            drive.limit()
        case _:
            drive.override(throttle=FAST, seconds=3_600)
    assert [run.call for run in drive.take()] == [call.id]


@pytest.mark.parametrize("is_by_time", [True, False])
def test_an_override_that_ended_leaves_no_spacing_behind(drive: Drive, *, is_by_time: bool) -> None:
    drive.key(throttle=FAST)
    drive.override(throttle=SLOW, seconds=60)
    start(drive)
    drive.forward(1)
    call = drive.send("api")
    assert drive.take() == []
    if is_by_time:
        drive.forward(59)
    else:
        api.end_override("api")
    assert [run.call for run in drive.take()] == [call.id]


def test_a_start_of_a_large_cost_delays_the_next_by_the_throttle_in_force(drive: Drive) -> None:
    drive.key(throttle=(1, 60))
    start(drive, cost=1_000)
    drive.limit(throttle=FAST)
    call = drive.send("api")
    drive.forward(99)
    assert drive.take() == []
    drive.forward(1.02)
    assert [run.call for run in drive.take()] == [call.id]


def test_a_throttle_that_was_tightened_counts_from_the_last_start(drive: Drive) -> None:
    drive.key(throttle=FAST)
    start(drive)
    drive.limit(throttle=SLOW)
    call = drive.send("api")
    drive.forward(3_599)
    assert drive.take() == []
    drive.forward(1.02)
    assert [run.call for run in drive.take()] == [call.id]


def test_the_starts_of_an_override_without_a_throttle_count_when_it_has_ended(drive: Drive) -> None:
    drive.key(throttle=SLOW)
    drive.override(throttle=None, seconds=60)
    for _ in range(3):
        start(drive)
    drive.forward(61)
    call = drive.send("api")
    drive.forward(3_538)
    assert drive.take() == []
    drive.forward(1.02)
    assert [run.call for run in drive.take()] == [call.id]


# Calls that were admitted before the throttle was tightened


@pytest.mark.deliveries("broker")  # The others start a call as they admit it.
def test_calls_admitted_before_a_throttle_was_tightened_go_back_and_come_when_it_opens(drive: Drive) -> None:
    drive.key(throttle=(50, 1))
    calls = drive.send_many(10, "api")
    drive.limit(throttle=SLOW)
    assert len(drive.take(10)) == 1
    left = [drive.row(call) for call in calls[1:]]
    assert {(call.state, call.attempt, call.ticket) for call in left} == {(State.AVAILABLE, 0, None)}
    assert drive.use() == 1
    drive.recover()
    drive.forward(3_500)
    assert drive.states(calls[1:]) == [State.AVAILABLE] * 9, "nothing goes to and fro meanwhile"
    drive.forward(101)
    assert [run.call for run in drive.take(10)] == [calls[1].id]


@pytest.mark.deliveries("broker")
def test_all_that_was_admitted_within_the_horizon_may_start_at_once(drive: Drive) -> None:
    drive.key(throttle=(50, 1))
    drive.send_many(20, "api")
    drive.clock.forward(30)
    runs = drive.take(11)
    assert len(runs) == 11
    assert runs[-1].start_at <= drive.clock.now + timedelta(seconds=0.23)


@pytest.mark.deliveries("broker")
def test_a_call_that_was_admitted_keeps_back_the_next_one_before_it_starts(drive: Drive) -> None:
    drive.key(throttle=(1, 10))
    calls = [drive.send("api") for _ in range(2)]
    assert drive.states(calls) == [State.DISPATCHED, State.AVAILABLE]


def test_a_call_that_is_taken_ahead_of_its_time_starts_after_the_cost_of_the_one_before(drive: Drive) -> None:
    drive.key(throttle=(10, 1))
    drive.send(costs={"api": 5})
    drive.send("api")
    (run,) = runs = drive.take(2)
    while runs == [run]:
        drive.forward(0.05)
        runs += drive.take()
    assert runs[1].start_at - run.start_at >= timedelta(seconds=0.5)
