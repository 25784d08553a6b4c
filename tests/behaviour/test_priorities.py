"""Priorities: on a key a higher one is never passed by a lower one, unless a limit stops it or no worker is free."""

import pytest

from dispatcher import api
from dispatcher.states import State
from tests import faults
from tests.drive import Drive

wins_across_queues = pytest.mark.parametrize(
    "delivery",
    [
        pytest.param(name, marks=pytest.mark.xfail(strict=True, raises=AssertionError, reason=reason))
        for reason in ["one way in, point 2: priority wins across queues"]
        for name in ("direct", "http")
    ]
    + ["broker"],
)


def test_of_two_lanes_that_one_trip_finds_the_higher_one_gets_the_only_room(drive: Drive) -> None:
    drive.key(concurrency=1)
    api.pause("api")
    low, high = drive.send("api"), drive.send("api", priority=5)
    api.resume("api")
    (run,) = drive.take(2)
    assert run.call == high.id
    assert [each.call for each in drive.take(2, ends=[run])] == [low.id]


def test_priorities_go_from_100_down_to_minus_100(drive: Drive) -> None:
    drive.key(concurrency=1)
    api.pause("api")
    calls = {priority: drive.send("api", priority=priority) for priority in (-5, 100, 0, -100, 7)}
    api.resume("api")
    assert drive.drain() == [calls[priority].id for priority in (100, 7, 0, -5, -100)]


def test_a_higher_one_goes_first_where_processes_are_what_is_scarce(drive: Drive) -> None:
    api.pause(drive.key(f"queue:{drive.queue}").name)
    low, high = drive.send(), drive.send(priority=1)
    api.resume(f"queue:{drive.queue}")
    assert [run.call for _ in range(2) for run in drive.take(1)] == [high.id, low.id]


def test_a_higher_one_sent_later_goes_before_all_that_wait(drive: Drive) -> None:
    drive.key(concurrency=1)
    tenants = [drive.key(f"tenant:{number}").name for number in range(4)]
    drive.send("api")
    (run,) = drive.take()
    for tenant in tenants:
        drive.send("api", tenant)
    assert drive.take() == []
    high = drive.send("api", priority=1)
    assert [each.call for each in drive.take(4, ends=[run])] == [high.id]


def test_a_higher_one_that_is_parked_goes_before_a_lower_one_that_was_just_sent(drive: Drive) -> None:
    drive.key(concurrency=1)
    drive.send("api")
    (run,) = drive.take()
    high = drive.send("api", priority=5)
    assert drive.take() == []
    low = drive.send("api")
    (run,) = drive.take(1, ends=[run])
    assert run.call == high.id
    assert [each.call for each in drive.take(1, ends=[run])] == [low.id]


def test_a_higher_one_goes_first_though_an_end_and_a_trip_come_apart(drive: Drive) -> None:
    drive.key(concurrency=1)
    drive.key("tenant")
    drive.send("api")
    (run,) = drive.take()
    low, high = drive.send("api"), drive.send("api", "tenant", priority=5)
    assert drive.take() == []
    drive.end(run)
    assert [each.call for each in drive.take(2)] == [high.id]
    assert drive.state(low) == State.AVAILABLE


def test_a_lower_one_that_was_just_sent_does_not_take_the_room_that_a_dying_worker_left_to_a_higher_one(
    drive: Drive,
) -> None:
    drive.key(concurrency=1)
    drive.send("api")
    (run,) = drive.take()
    high = drive.send("api", priority=5)
    assert drive.take() == []
    faults.end_and_die(run)
    drive.send("api")
    started = drive.take(2)
    drive.tick()
    assert [each.call for each in [*started, *drive.take(2)]] == [high.id]


def test_a_higher_one_that_a_limit_stops_does_not_stand_in_the_way_of_others(drive: Drive) -> None:
    drive.key("api", concurrency=2)
    drive.key("full", concurrency=0)
    high, low, free = drive.send("api", "full", priority=9), drive.send("api"), drive.send(priority=-9)
    assert [run.call for run in drive.take(3)] == [low.id, free.id]
    assert drive.state(high) == State.AVAILABLE


def test_the_order_of_priorities_goes_before_the_turns_of_lanes(drive: Drive) -> None:
    drive.key(concurrency=1)
    for name in "ab":
        drive.key(name)
    api.pause("api")
    high = drive.send_many(3, "api", "a", priority=1)
    low = drive.send_many(2, "api", "b")
    api.resume("api")
    assert drive.drain() == [call.id for call in [*high, *low]]


# Across queues


@wins_across_queues
def test_a_higher_one_of_another_queue_gets_the_room_that_an_end_gave_back(drive: Drive, delivery: str) -> None:
    other = drive.beside(delivery)
    drive.key(concurrency=1)
    drive.send("api")
    (run,) = drive.take()
    low, high = drive.send("api"), other.send("api", priority=5)
    # Both queues have a worker that is free.
    assert drive.take(worker="two") == other.take() == []
    drive.end(run)
    assert [each.call for each in [*drive.take(worker="two"), *other.take()]] == [high.id]
    assert drive.state(low) == State.AVAILABLE


@wins_across_queues
def test_a_higher_one_of_another_queue_gets_the_room_of_the_trip_that_frees_it(drive: Drive, delivery: str) -> None:
    other = drive.beside(delivery)
    drive.key(concurrency=1)
    drive.send("api")
    (run,) = drive.take()
    low, high = drive.send("api"), other.send("api", priority=5)
    assert other.take() == []
    started = [*drive.take(ends=[run]), *other.take()]
    assert [each.call for each in started] == [high.id]
    assert drive.state(low) == State.AVAILABLE


@pytest.mark.deliveries("direct", "http")
def test_a_higher_one_of_a_queue_without_a_free_worker_is_passed(drive: Drive) -> None:
    other = drive.beside("direct")
    drive.key(concurrency=1)
    drive.send("api")
    (run,) = drive.take()
    low, high = drive.send("api"), other.send("api", priority=5)
    assert [each.call for each in drive.take(ends=[run])] == [low.id]
    assert drive.state(high) == State.AVAILABLE


@pytest.mark.deliveries("direct")  # Over HTTP the queues have the order of the request, with the broker their workers'.
def test_a_worker_of_two_queues_starts_the_higher_one_first(drive: Drive) -> None:
    post = drive.beside("direct", "post")
    low, middle, high = drive.send(priority=-1), post.send(), drive.send(priority=1)
    queues = [drive.queue, "post"]
    assert [run.call for _ in range(3) for run in drive.take(queues=queues)] == [high.id, middle.id, low.id]
