"""A call that is sent by itself starts at once only where nothing stops it, and no call was before it."""

from collections.abc import Callable

import pytest

from dispatcher import api
from tests.drive import Drive

PERIOD = 10
MARGIN = 0.05
"""How much longer than its period a start counts."""


def test_a_call_is_found_at_once_though_its_lane_had_no_calls(drive: Drive) -> None:
    for _ in range(3):
        call = drive.send()
        assert drive.drain() == [call.id]


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
    assert drive.held(second) == {}
    assert [run.call for run in drive.take(2)] == [first.id]
    assert drive.held(second) == {}


@pytest.mark.parametrize("keys", [(), ("api",), ("api", "tenant")], ids=len)
def test_a_call_holds_a_slot_of_each_of_its_keys_or_one_without(drive: Drive, keys: tuple[str, ...]) -> None:
    for name in keys:
        drive.key(name)
    calls = [drive.send(*keys) for _ in range(2)]
    assert len(drive.take(2)) == 2
    assert [drive.held(call) for call in calls] == [dict.fromkeys(keys or [None], 1)] * 2


@pytest.mark.parametrize("other", ["direct", "broker", "http"])
def test_what_another_queue_has_started_meanwhile_counts(drive: Drive, other: str) -> None:
    beside = drive.beside(other)
    drive.key(concurrency=4)
    for _ in range(2):
        drive.send("api")
    beside.send("api")
    assert (len(beside.take()), len(drive.take(2))) == (1, 2)
    for _ in range(3):
        drive.send("api")
    assert len(drive.take(3)) == 1


def test_what_was_sent_together_meanwhile_counts(drive: Drive) -> None:
    drive.key(concurrency=4)
    for _ in range(2):
        drive.send("api")
    drive.send_many(2, "api")
    drive.send("api")
    assert len(drive.take(5)) == 4


CLOSED: dict[str, Callable[[Drive], object]] = {
    "pause": lambda _: api.pause("api"),
    "block": lambda _: api.block("api", 60),
    "limit": lambda drive: drive.limit(concurrency=0),
    "override": lambda drive: drive.override(seconds=60, concurrency=0),
}


@pytest.mark.parametrize("close", CLOSED)
def test_a_call_under_a_closed_key_holds_nothing(drive: Drive, close: str) -> None:
    drive.key()
    drive.send("api")
    assert len(drive.drain()) == 1
    CLOSED[close](drive)
    call = drive.send("api")
    assert drive.held(call) == {}
    assert drive.take() == []
