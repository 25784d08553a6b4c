"""What becomes of a call that a limit stops: it waits, is put off, or is dropped, as it asks."""

from datetime import timedelta
from typing import Any

import pytest

from dispatcher.models import CallQueue
from dispatcher.states import State
from tests.drive import Drive


def stopped(drive: Drive, count: int = 1, **fields: Any) -> list[CallQueue]:
    """Send calls beside one that fills the key, and let a worker look at them."""
    drive.send("api")
    assert len(drive.take()) == 1
    calls = drive.send_many(count, "api", **fields)
    assert drive.take(9) == []
    return calls


def test_a_call_that_asks_to_be_dropped_is_discarded_at_the_limit(drive: Drive) -> None:
    drive.key(concurrency=1)
    calls = stopped(drive, 3, on_limit="drop")
    rows = [drive.row(call) for call in calls]
    assert {(row.state, row.finished_at, row.ticket, row.attempt) for row in rows} == {
        (State.DISCARDED, drive.clock.now, None, 0)
    }
    assert (rows[0].error["type"], rows[0].error["message"]) == ("LimitReached", "dropped at the limit of api")
    assert drive.held(calls[0]) == {}


def test_those_that_fit_start_and_only_the_rest_is_dropped(drive: Drive) -> None:
    drive.key(concurrency=2)
    calls = drive.send_many(50, "api", on_limit="drop")
    assert [run.call for run in drive.take(50)] == [call.id for call in calls[:2]]
    assert set(drive.states(calls[2:])) == {State.DISCARDED}


def test_a_call_is_rescheduled_to_when_its_window_has_room(drive: Drive) -> None:
    drive.key(rate=(1, 60))
    (call,) = stopped(drive, on_limit="reschedule")
    row = drive.row(call)
    assert row.state == State.SCHEDULED
    assert timedelta(seconds=60) <= row.scheduled_at - drive.clock.now <= timedelta(seconds=60.1)
    drive.forward(59)
    assert drive.take() == []
    drive.forward(1.1)
    assert [run.call for run in drive.take()] == [call.id]
    assert drive.row(call).attempt == 1


def test_a_call_that_a_running_one_stops_is_rescheduled_by_the_setting(drive: Drive, settings: Any) -> None:
    settings.DISPATCHER = {"reschedule_after": 7}
    drive.key(concurrency=1)
    (call,) = stopped(drive, on_limit="reschedule")
    assert drive.row(call).scheduled_at == drive.clock.now + timedelta(seconds=7)
    drive.forward(7)
    assert drive.take() == []
    assert drive.state(call) == State.SCHEDULED, "it is stopped, and put off, again"


@pytest.mark.parametrize("on_limit", ["drop", "reschedule"])
def test_a_call_that_no_limit_stops_starts(drive: Drive, on_limit: str) -> None:
    drive.key(concurrency=1)
    call = drive.send("api", on_limit=on_limit)
    assert [run.call for run in drive.take()] == [call.id]


@pytest.mark.parametrize("on_limit", ["drop", "reschedule"])
def test_it_counts_for_each_key_and_for_the_queue_s_own(drive: Drive, on_limit: str) -> None:
    drive.key("api")
    drive.key(f"queue:{drive.queue}", concurrency=0)
    call = drive.send("api", on_limit=on_limit)
    assert drive.take() == []
    assert drive.state(call) == (State.DISCARDED if on_limit == "drop" else State.SCHEDULED)


def test_calls_that_are_put_off_come_one_after_the_other(drive: Drive) -> None:
    drive.key(throttle=(1, 60))
    first, second = [drive.row(call).scheduled_at for call in stopped(drive, 2, on_limit="reschedule")]
    assert second - first >= timedelta(seconds=60)
