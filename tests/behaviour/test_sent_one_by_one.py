"""A call that is sent by itself starts at once only where nothing stops it, and nobody was before it."""

import pytest

from tests.drive import Drive

PERIOD = 10
MARGIN = 0.05
"""How much longer than its period a start counts."""


def test_calls_fill_a_window_and_no_more(drive: Drive) -> None:
    drive.key(rate=(2, PERIOD))
    calls = [drive.send("api") for _ in range(3)]
    assert [run.call for run in drive.take(3)] == [call.id for call in calls[:2]]


def test_a_call_within_the_margin_of_the_last_start_waits(drive: Drive) -> None:
    drive.key(rate=(1, PERIOD))
    drive.send("api")
    drive.drain()
    drive.clock.forward(PERIOD + MARGIN / 2)
    call = drive.send("api")
    assert drive.take() == []
    drive.forward(MARGIN / 2)
    assert [run.call for run in drive.take()] == [call.id]


def test_a_call_that_a_throttle_puts_off_holds_nothing_meanwhile(drive: Drive) -> None:
    drive.key("pace", throttle=(1, PERIOD))
    drive.key("api")
    first, second = drive.send("pace", "api"), drive.send("pace", "api")
    assert [run.call for run in drive.take(2)] == [first.id]
    assert drive.held(second) == {}


def test_a_call_holds_a_slot_of_each_of_its_keys_and_of_its_queue(drive: Drive) -> None:
    names = [drive.key(name).name for name in ("api", "tenant", f"queue:{drive.queue}")]
    drive.send("api", "tenant")
    (run,) = drive.take()
    assert drive.held(run) == dict.fromkeys(names, 1)


def test_a_call_without_keys_holds_one_slot(drive: Drive) -> None:
    drive.send()
    (run,) = drive.take()
    assert drive.held(run) == {None: 1}


@pytest.mark.parametrize("other", ["direct", "broker", "http"])
def test_what_another_queue_has_started_meanwhile_counts(drive: Drive, other: str) -> None:
    beside = drive.beside(other)
    drive.key(concurrency=3)
    drive.send("api")
    beside.send("api")
    assert len(beside.take()) == len(drive.take()) == 1
    for _ in range(3):
        drive.send("api")
    assert len(drive.take(3)) == 1


def test_what_was_sent_together_meanwhile_counts(drive: Drive) -> None:
    drive.key(concurrency=3)
    drive.send("api")
    drive.send_many(2, "api")
    drive.send("api")
    assert len(drive.take(4)) == 3
