"""What time brings: scheduled calls, retries, and calls that did not start in time."""

from typing import Any

import pytest

from dispatcher import api
from dispatcher.errors import CallInvalid
from dispatcher.models import CallQueue
from dispatcher.states import Reason, State
from tests.drive import Drive, ids


def test_a_scheduled_call_waits_for_its_time_and_holds_nothing(drive: Drive) -> None:
    drive.key(concurrency=1)
    later, now = drive.send("api", scheduled_at=drive.at(10)), drive.send("api")
    assert drive.state(later) is State.SCHEDULED
    runs = drive.take(2)
    assert ids(runs) == [now.id]
    drive.end(*runs)
    drive.forward(9.999)
    assert drive.take(2) == []
    drive.forward(0.001)
    assert ids(drive.take(2)) == [later.id]


def test_a_call_for_a_time_that_is_past_waits_for_none(drive: Drive) -> None:
    call = drive.send(scheduled_at=drive.at(-3600))
    assert ids(drive.take()) == [call.id]


def test_a_call_whose_time_has_come_stands_in_order_of_sending(drive: Drive) -> None:
    drive.key(concurrency=0)
    calls = [
        drive.send("api", scheduled_at=drive.at(10)),
        drive.send("api"),
        drive.send("api", scheduled_at=drive.at(5)),
    ]
    drive.take()
    drive.forward(10)
    drive.limit(concurrency=3)
    assert ids(drive.take(3)) == ids(calls)


def test_a_call_whose_time_has_come_brings_no_later_one_along(drive: Drive) -> None:
    first, _ = (drive.send(scheduled_at=drive.at(seconds)) for seconds in (10, 20))
    drive.forward(10)
    assert ids(drive.take(2)) == [first.id]


def test_calls_whose_time_has_come_keep_to_the_limits(drive: Drive) -> None:
    drive.key(concurrency=2)
    calls = drive.send_many(5, "api", scheduled_at=drive.at(10))
    drive.forward(10)
    assert ids(drive.take(5)) == ids(calls[:2])


def test_more_calls_than_a_tick_takes_become_due_the_earliest_first(drive: Drive, settings: Any) -> None:
    settings.DISPATCHER = {"batch": 2}
    calls = [drive.send(scheduled_at=drive.at(seconds)) for seconds in (3, 1, 2)]
    drive.forward(60)
    assert drive.state(calls[0]) is State.SCHEDULED
    drive.tick()
    assert State.SCHEDULED not in drive.states(calls)


def test_a_failed_call_is_tried_again_from_its_time_on(drive: Drive) -> None:
    call = drive.send(retry={"initial_interval": "PT10S", "jitter": False})
    (run,) = drive.take()
    drive.end(run, error=ValueError())
    assert drive.state(call) is State.RETRYABLE
    drive.forward(9.999)
    assert drive.take() == []
    drive.forward(0.001)
    (again,) = drive.take()
    assert (again.call, again.attempt) == (call.id, 2)


# Calls that did not start in time


def test_a_call_that_did_not_start_in_time_is_discarded(drive: Drive) -> None:
    drive.key(concurrency=0)
    calls = [
        drive.send("api", expires_at=drive.at(10)),
        drive.send("api", scheduled_at=drive.at(5), expires_at=drive.at(10)),
        drive.send("api", expires_at=drive.at(11)),
        drive.send("api"),
    ]
    drive.forward(9.999)
    assert State.DISCARDED not in drive.states(calls)
    drive.forward(0.001)
    assert drive.states(calls) == [State.DISCARDED, State.DISCARDED, State.AVAILABLE, State.AVAILABLE]
    row = drive.row(calls[0])
    assert (row.reason, row.attempt, row.finished_at, row.error["type"]) == (
        Reason.EXPIRED,
        0,
        drive.clock.now,
        "Expired",
    )


@pytest.mark.parametrize("seconds", [10, 11])
def test_an_expired_call_at_the_head_of_a_lane_does_not_start_and_holds_up_none(drive: Drive, seconds: float) -> None:
    """Before any tick has come by; a call of the broker was admitted while it could still start."""
    drive.key(concurrency=1)
    expired, behind = drive.send("api", expires_at=drive.at(10)), drive.send("api")
    drive.clock.forward(seconds)
    assert ids(drive.take(2)) == [behind.id]
    drive.tick()
    assert (drive.state(expired), drive.row(expired).attempt) == (State.DISCARDED, 0)


def test_many_expired_calls_at_the_head_of_a_lane_are_passed(drive: Drive) -> None:
    drive.key(concurrency=1)
    api.pause("api")
    drive.send_many(50, "api", expires_at=drive.at(10))
    behind = drive.send("api")
    drive.clock.forward(10)
    api.resume("api")
    assert ids(drive.take()) == [behind.id]
    drive.tick()


@pytest.mark.deliveries("http")
def test_a_call_that_expired_while_it_was_fetched_is_discarded_by_the_tick_that_ends_its_lease(drive: Drive) -> None:
    call = drive.send(expires_at=drive.at(60))
    assert drive.take()
    drive.forward(600)
    assert drive.state(call) == State.DISCARDED


def test_what_runs_does_not_expire(drive: Drive) -> None:
    drive.send(expires_at=drive.at(10))
    (run,) = drive.take()
    drive.clock.forward(60)
    drive.tick()
    assert drive.state(run) is State.ACTIVE
    assert drive.end(run)
    assert drive.state(run) is State.COMPLETED


def test_a_call_that_failed_and_expired_is_not_tried_again(drive: Drive) -> None:
    drive.send(expires_at=drive.at(10), retry={"initial_interval": "PT20S"})
    (run,) = drive.take()
    drive.end(run, error=ValueError())
    drive.forward(10)
    row = drive.row(run)
    assert (row.state, row.reason, len(row.errors)) == (State.DISCARDED, Reason.EXPIRED, 1)


@pytest.mark.parametrize("expires_in", [0, -1])
def test_a_call_that_could_never_start_is_refused_when_it_is_sent(drive: Drive, expires_in: float) -> None:
    for times in ({"expires_at": drive.at(expires_in)}, {"scheduled_at": drive.at(9), "expires_at": drive.at(9)}):
        with pytest.raises(CallInvalid, match=r"^expires_at: .* could never start"):
            drive.send(**times)


# Ticks


def test_a_tick_brings_all_that_is_due_and_nothing_else(drive: Drive) -> None:
    drive.key(rate=(1, 10))
    drive.send("api")
    assert len(drive.take()) == 1
    waiting, later = drive.send("api"), drive.send(scheduled_at=drive.at(20))
    expiring = drive.send("api", expires_at=drive.at(20))
    assert drive.take(3) == []
    before = list(CallQueue.objects.order_by("id").values())
    drive.forward(1)
    assert list(CallQueue.objects.order_by("id").values()) == before
    drive.forward(19)
    assert sorted(ids(drive.take(3))) == sorted([waiting.id, later.id])
    assert drive.state(expiring) is State.DISCARDED


def test_an_override_of_a_key_that_nothing_waits_for_ends_as_well(drive: Drive) -> None:
    drive.key(concurrency=5)
    drive.override(seconds=60, concurrency=0)
    drive.forward(60)
    assert (drive.key().override_until, drive.key().concurrency) == (None, 5)
