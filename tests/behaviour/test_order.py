"""Order: within a lane calls start in order of sending, whatever happens between."""

from datetime import timedelta

import pytest
from django.db import transaction

from dispatcher import api
from tests.drive import Drive


def test_calls_start_in_order_of_sending(drive: Drive) -> None:
    calls = [drive.send() for _ in range(3)] + drive.send_many(3)
    assert [run.call for _ in range(3) for run in drive.take(2)] == [call.id for call in calls]


def test_a_call_sent_later_does_not_take_the_room_that_an_earlier_one_waits_for(drive: Drive) -> None:
    drive.key(concurrency=1)
    drive.send("api")
    (run,) = drive.take(1)
    second = drive.send_and_die("api")
    third = drive.send("api")
    (run,) = drive.take(2, ends=[run])
    assert run.call == second.id
    fourth = drive.send("api")
    assert [drive.take(2, ends=[run])[0].call, fourth.id] == [third.id, fourth.id]


def test_a_call_put_back_goes_before_those_sent_after_it(drive: Drive) -> None:
    drive.key(concurrency=2)
    calls = drive.send_many(3, "api")
    runs = drive.take(2)
    api.pause("api")
    for run in reversed(runs):
        assert drive.give_back(run)
    api.resume("api")
    assert [run.call for run in drive.take(3)] == [call.id for call in calls[:2]]


def test_a_call_whose_time_has_come_goes_before_those_sent_after_it(drive: Drive) -> None:
    drive.key(concurrency=0)
    first = drive.send("api", scheduled_at=drive.clock.now + timedelta(seconds=10))
    second = drive.send("api")
    drive.forward(10)
    drive.limit(concurrency=2)
    assert [run.call for run in drive.take(2)] == [first.id, second.id]


def test_an_expired_call_at_the_head_of_a_lane_does_not_start_and_those_behind_it_do(drive: Drive) -> None:
    drive.key(concurrency=1)
    drive.send("api")
    (run,) = drive.take()
    late, good = drive.send("api", expires_at=drive.clock.now + timedelta(seconds=5)), drive.send("api")
    # No tick has come yet that would discard it.
    drive.clock.forward(5)
    started = [each.call for each in drive.take(ends=[run])]
    drive.tick()
    assert [*started, *(each.call for each in drive.take())] == [good.id]
    assert drive.row(late).attempt == 0


def test_sends_of_one_transaction_start_in_order_after_its_commit(drive: Drive) -> None:
    drive.key(concurrency=3)
    with transaction.atomic():
        calls = [drive.send("api", priority=number % 3) for number in range(9)]
        assert drive.take(9) == []
    assert [run.call for run in drive.take(9)] == [calls[place].id for place in (2, 5, 8)]


@pytest.mark.parametrize("count", [60, 130])
def test_a_long_backlog_keeps_its_order_to_the_end(drive: Drive, count: int) -> None:
    drive.key(concurrency=7)
    calls = drive.send_many(count, "api")
    assert drive.drain(room=7) == [call.id for call in calls]


@pytest.mark.parametrize("names", [(), ("api",)], ids=["without keys", "with a key"])
def test_calls_that_were_sent_by_processes_that_died_keep_their_place(drive: Drive, names: tuple[str, ...]) -> None:
    drive.key()
    first = drive.send_and_die(*names)
    second = drive.send(*names)
    drive.tick()
    assert [run.call for run in drive.take(2)] == [first.id, second.id]
