"""Pauses: nothing starts under a paused key, what runs goes on, and a resume lets start what has room."""

from collections.abc import Callable

import pytest
from django.db import transaction

from dispatcher import api
from dispatcher.states import State
from tests.drive import Drive, ids


def pause(_: Drive) -> None:
    api.pause("api")


def block(_: Drive) -> None:
    api.block("api", 3600)


def shut(drive: Drive) -> None:
    drive.limit(concurrency=0)


def open_again(drive: Drive) -> None:
    drive.limit(concurrency=2)
    api.resume("api")


every_closing = pytest.mark.parametrize("close", [pause, block, shut])


@every_closing
def test_nothing_starts_under_a_closed_key_and_what_runs_goes_on(drive: Drive, close: Callable[[Drive], None]) -> None:
    drive.key(concurrency=2)
    drive.send("api")
    (run,) = drive.take()
    close(drive)
    calls = drive.send_many(2, "api")
    assert drive.take(2) == []
    assert drive.states([run, *calls]) == [State.ACTIVE, State.AVAILABLE, State.AVAILABLE]
    assert drive.end(run, result=1)
    drive.forward(5)
    assert (drive.state(run), drive.take(2), drive.use()) == (State.COMPLETED, [], 0)


@every_closing
def test_what_was_sent_before_a_key_closed_does_not_start_and_spends_nothing(
    drive: Drive, close: Callable[[Drive], None]
) -> None:
    """A call of the broker was admitted before, and is claimed after."""
    drive.key(concurrency=2)
    calls = [drive.send("api"), *drive.send_many(2, "api")]
    close(drive)
    assert drive.take(3) == []
    for call in map(drive.row, calls):
        assert (call.state, call.attempt, call.ticket, drive.held(call)) == (State.AVAILABLE, 0, None, {})
    open_again(drive)
    assert ids(drive.take(3)) == ids(calls[:2])


@every_closing
def test_a_key_that_opens_lets_in_as_many_as_it_has_room_for_in_order(
    drive: Drive, close: Callable[[Drive], None]
) -> None:
    drive.key(concurrency=2)
    close(drive)
    calls = drive.send_many(3, "api")
    assert drive.take(3) == []
    open_again(drive)
    runs = drive.take(3)
    assert ids(runs) == ids(calls[:2])
    assert ids(drive.take(3, ends=runs)) == ids(calls[2:])


@pytest.mark.ojs
def test_a_resume_lets_in_who_waits_in_other_queues_and_of_other_deliveries(drive: Drive) -> None:
    others = [drive.beside("direct"), drive.beside("broker"), drive.beside("http")]
    drive.key(concurrency=4)
    api.pause("api")
    calls = {each: each.send("api") for each in (drive, *others)}
    assert [each.take() for each in calls] == [[]] * 4
    api.resume("api")
    assert [ids(each.take()) for each in calls] == [[call.id] for call in calls.values()]


def test_a_paused_key_stops_a_call_that_spends_others_too_and_no_other_call(drive: Drive) -> None:
    drive.key(concurrency=1)
    drive.key("other", concurrency=1)
    api.pause("api")
    both, other = drive.send("api", "other"), drive.send("other")
    assert ids(drive.take(2)) == [other.id]
    assert drive.held(both) == {}


def test_a_pause_outlasts_a_block_a_declaration_and_time(drive: Drive) -> None:
    drive.key(concurrency=1)
    api.block("api", 5)
    api.pause("api")
    drive.key(concurrency=9)
    call = drive.send("api")
    drive.forward(10**6)
    assert drive.take() == []
    api.resume("api")
    assert ids(drive.take()) == [call.id]


def test_other_limits_open_no_paused_key(drive: Drive) -> None:
    drive.key(concurrency=0)
    api.pause("api")
    call = drive.send("api")
    drive.limit(concurrency=5)
    drive.override(seconds=60, concurrency=5)
    api.end_override("api")
    drive.tick()
    assert drive.take() == []
    api.resume("api")
    assert ids(drive.take()) == [call.id]


@pytest.mark.parametrize("is_undone", [False, True])
def test_a_pause_or_resume_holds_from_its_commit_on(drive: Drive, *, is_undone: bool) -> None:
    drive.key(concurrency=1)
    api.pause("api")
    call = drive.send("api")
    with transaction.atomic():
        api.resume("api")
        assert drive.state(call) is State.AVAILABLE
        transaction.set_rollback(is_undone)
    assert ids(drive.take()) == ([] if is_undone else [call.id])
    with transaction.atomic():
        api.pause("api")
        transaction.set_rollback(is_undone)
    assert drive.key().is_paused
