"""How many calls of a queue could start if a process were free: what an autoscaler looks at.

Counted is what a worker with room for all would start, as long as no process is free and nothing else looks.
"""

from datetime import timedelta

import pytest

from dispatcher import api
from dispatcher.api import any_of
from tests.drive import Drive

pytestmark = pytest.mark.django_db(transaction=True)


def test_calls_that_no_limit_holds_are_counted_with_the_oldest(drive: Drive) -> None:
    drive.take(0)
    first, *_ = drive.send_many(3)
    drive.clock.forward(10)
    drive.send_many(2)
    found = drive.runnable()
    assert (found.calls, found.since) == (5, drive.row(first).created_at)
    drive.take(2)
    assert (drive.runnable().calls, drive.runnable().active) == (3, 2)


def test_calls_that_a_limit_holds_are_not_counted(drive: Drive) -> None:
    for limits in ({"concurrency": 2}, {"rate": (2, 60)}):
        drive.key(name := next(iter(limits)), **limits)
        drive.send_many(5, name)
    drive.key("paused")
    api.pause("paused")
    drive.send("paused")
    assert drive.runnable().calls == 4
    assert len(drive.take(9)) == 4
    assert drive.runnable().calls == 0


def test_room_of_a_key_is_counted_once_for_all_lanes_of_a_queue(drive: Drive) -> None:
    drive.key("api", concurrency=5)
    drive.key(f"queue:{drive.queue}", concurrency=6)
    for priority in range(3):
        drive.send_many(3, "api", priority=priority)
    assert drive.runnable().calls == 5
    drive.send_many(3)
    assert drive.runnable().calls == 6


def test_costs_count(drive: Drive) -> None:
    drive.key("tokens", concurrency=10)
    drive.send_many(9, costs={"tokens": 4})
    assert drive.runnable().calls == 2


def test_a_throttle_lets_start_what_comes_within_the_horizon(drive: Drive) -> None:
    drive.key("api", throttle=(10, 1))
    drive.send_many(9, "api")
    count = drive.runnable().calls
    assert count == len(drive.take(9))


def test_a_group_has_the_room_of_its_members(drive: Drive) -> None:
    drive.key("proxy:a", concurrency=2)
    drive.key("proxy:b", concurrency=1)
    drive.send_many(9, any_of("proxy:*"))
    count = drive.runnable().calls
    assert count == len(drive.take(9))


def test_what_time_opens_is_counted_though_every_process_is_busy(drive: Drive) -> None:
    drive.key("api", rate=(1, 10))
    drive.send_many(3, "api")
    assert len(drive.take(9)) == 1
    assert drive.runnable().calls == 0
    drive.clock.forward(11)
    assert drive.runnable().calls == 1
    drive.forward(1)
    assert len(drive.take(9)) == 1


def test_calls_are_counted_though_nothing_runs(drive: Drive) -> None:
    drive.key("api", concurrency=2)
    for _ in range(3):
        drive.send_and_die("api")
    drive.send_and_die(scheduled_at=drive.clock.now + timedelta(seconds=5))
    assert drive.runnable().calls == 2
    drive.clock.forward(6)
    assert drive.runnable().calls == 3
