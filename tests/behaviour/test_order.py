"""Order: within a lane calls start in order of sending, whatever happens between."""

import pytest
from django.db import transaction

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


def test_sends_of_one_transaction_start_in_order_after_its_commit(drive: Drive) -> None:
    drive.key(concurrency=3)
    with transaction.atomic():
        calls = [drive.send("api", priority=number % 3) for number in range(9)]
        assert drive.take(9) == []
    assert [run.call for run in drive.take(9)] == [calls[place].id for place in (2, 5, 8)]


@pytest.mark.parametrize("names", [(), ("api",)], ids=["without keys", "with a key"])
def test_calls_that_were_sent_by_processes_that_died_keep_their_place(drive: Drive, names: tuple[str, ...]) -> None:
    drive.key()
    first = drive.send_and_die(*names)
    second = drive.send(*names)
    drive.tick()
    assert [run.call for run in drive.take(2)] == [first.id, second.id]
