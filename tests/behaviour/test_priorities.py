"""Priorities: on a key a higher one is never passed by a lower one, unless a limit stops it or no worker is free."""

from typing import Any

import pytest

from dispatcher import api
from dispatcher.states import State
from tests import faults
from tests.drive import Drive, ids

wins_across_queues = pytest.mark.parametrize("delivery", ["direct", "http", "broker"])


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


def test_higher_ones_are_next_though_the_lane_of_the_call_that_ended_has_more(drive: Drive) -> None:
    drive.key(concurrency=1)
    _, low = drive.send_many(2, "api")
    runs = drive.take()
    drive.clock.forward(1)
    high = drive.send_many(2, "api", priority=5)
    assert drive.take() == []
    for call in [*high, low]:
        runs = drive.take(ends=runs)
        assert ids(runs) == [call.id]


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


def test_of_parked_lanes_the_higher_one_goes_first_though_it_was_served_last(drive: Drive) -> None:
    drive.key(concurrency=1)
    _, second = drive.send_many(2, "api", priority=5)
    runs = drive.take()
    drive.clock.forward(1)
    low = drive.send("api")
    assert drive.take() == []
    runs = drive.take(ends=runs)
    assert [run.call for run in runs] == [second.id]
    assert [run.call for run in drive.take(ends=runs)] == [low.id]


@pytest.mark.deliveries("direct", "http")  # The broker's calls without limits are all on their way.
@pytest.mark.parametrize("concurrency", [1, 5], ids=["its key just opened", "its key has room"])
def test_a_higher_one_goes_before_many_lanes_that_were_served_longer_ago(drive: Drive, concurrency: int) -> None:
    drive.key(concurrency=concurrency)
    _, second = drive.send_many(2, "api", priority=5)
    runs = drive.take()
    drive.clock.forward(1)
    for number in range(20):
        drive.send(drive.key(f"tenant:{number}").name)
    assert [run.call for run in drive.take(ends=runs)] == [second.id]


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


def test_a_higher_one_that_time_lets_go_on_goes_before_a_lower_one_that_an_end_lets_in(drive: Drive) -> None:
    drive.key("api", concurrency=1)
    drive.key("pace", rate=(1, 10))
    drive.send_many(2, "api", "pace")
    (run,) = drive.take()
    high = drive.send("pace", priority=5)
    assert drive.take() == []
    drive.clock.forward(10.1)
    started = drive.take(ends=[run])
    drive.tick()
    assert ids([*started, *drive.take()]) == [high.id]


@pytest.mark.parametrize("limited", [False, True])
def test_higher_ones_that_were_left_to_the_next_pass_go_first(drive: Drive, settings: Any, *, limited: bool) -> None:
    drive.key(concurrency=1)
    drive.send()
    drive.drain()
    drive.send("api")
    (run,) = drive.take()
    settings.DISPATCHER = {"batch": 2}
    parked = [drive.send("api")] if limited else []
    assert drive.take() == []
    high = drive.send_many(12, priority=5)
    low = parked or [drive.send()]
    drive.end(run)
    assert ids(drive.take(13)) == ids([*high, *low])


@pytest.mark.deliveries("direct", "http")  # As above.
def test_of_lanes_that_ends_leave_room_to_the_higher_one_is_next_though_it_was_served_last(drive: Drive) -> None:
    drive.key(concurrency=2)
    high = [drive.send_many(2, "api", drive.key(f"tenant:{number}").name, priority=5) for number in range(2)]
    runs = drive.take(2)
    drive.clock.forward(1)
    low = drive.send("api")
    assert drive.take() == []
    free = drive.send_many(2, priority=1)  # A worker that has room for one of these need look at no key.
    assert ids(drive.take()) == [free[0].id]
    started = drive.take(ends=runs)
    assert {*ids([*started, *drive.take()])} == {second.id for _, second in high}
    assert drive.state(low) == State.AVAILABLE


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


@pytest.mark.deliveries("direct")  # As above.
def test_a_worker_of_two_queues_starts_the_higher_one_first_however_many_lanes_wait(drive: Drive) -> None:
    other = drive.beside("direct")
    for number in range(6):
        drive.send(drive.key(f"tenant:{number}").name)
    high = other.send(priority=5)
    assert [run.call for run in drive.take(queues=[drive.queue, other.queue])] == [high.id]
