"""A process that is known to be gone ends its attempt at once; a worker that is stopped ends only its own."""

from typing import Any

import pytest

from dispatcher import api
from dispatcher.models import CallQueue
from dispatcher.states import State
from tests import faults
from tests.deliveries.broker import Broker
from tests.drive import Drive, Run

# Of workers that fetch over HTTP nothing is known but their reports.
pytestmark = pytest.mark.deliveries("direct", "broker")

RETRY = {"max_attempts": 9, "initial_interval": 1, "jitter": False}


def started(drive: Drive, *keys: str, worker: str = "one", **fields: Any) -> Run:
    drive.send(*keys, **fields)
    (run,) = drive.take(worker=worker)
    drive.beat(run, worker=worker)
    return run


def lose(drive: Any, run: Run, *, is_crash: bool = True) -> bool:
    """Let the process of a run be gone."""
    return bool(drive.lose(run, is_crash=is_crash))


def test_a_run_whose_process_is_gone_has_failed_at_once_and_its_room_goes_on(drive: Drive) -> None:
    drive.key(concurrency=1)
    run = started(drive, "api", retry=RETRY)
    second = drive.send("api")
    assert lose(drive, run)
    row = drive.row(run)
    assert (row.state, row.attempt, row.error["type"], row.error_count) == ("retryable", 1, "WorkerLost", 1)
    assert [each.call for each in drive.take()] == [second.id]
    assert not lose(drive, run)
    assert not drive.end(run, result="late")


def test_a_call_that_takes_its_process_with_it_three_times_in_a_row_is_poison(drive: Drive) -> None:
    call = drive.send(retry=RETRY)
    for _ in range(3):
        assert drive.state(call) != State.DISCARDED
        (run,) = drive.take()
        assert lose(drive, run)
        drive.forward(60)
    row = drive.row(call)
    assert (row.state, row.reason, row.attempt, row.error_count) == ("discarded", "poison", 3, 3)
    assert list(CallQueue.objects.poison()) == [call]
    assert drive.take() == []


def test_a_silence_in_which_its_process_may_have_died_counts_as_a_crash(drive: Drive) -> None:
    call = drive.send(retry=RETRY)
    for _ in range(3):
        (run,) = drive.take()
        drive.beat(run)
        drive.clock.forward(61)
        assert drive.recover() == 1
        drive.forward(60)
    assert (drive.state(call), drive.row(call).reason) == (State.DISCARDED, "poison")


@pytest.mark.parametrize(("how", "is_poison"), [("fails", False), ("is stopped", True)])
def test_a_failure_breaks_the_row_of_crashes_and_a_stop_of_its_process_does_not(
    drive: Drive, how: str, *, is_poison: bool
) -> None:
    call = drive.send(retry=RETRY)
    for crashes in (True, True, False, True):
        (run,) = drive.take()
        if how == "fails" and not crashes:
            drive.end(run, error=ValueError())
        else:
            lose(drive, run, is_crash=crashes)
        drive.forward(200)
    assert (drive.row(call).attempt, drive.row(call).reason) == (4, "poison" if is_poison else None)


def test_a_retry_by_hand_begins_again(drive: Drive) -> None:
    run = started(drive, retry={"max_attempts": 1})
    lose(drive, run)
    assert (drive.state(run), drive.row(run).reason) == (State.DISCARDED, "failed")
    api.retry([run.call])
    (again,) = drive.take()
    assert (again.call, again.attempt, drive.row(run).reason) == (run.call, 1, None)


def test_a_process_that_is_gone_before_its_start_has_come_spends_no_attempt(drive: Drive) -> None:
    drive.key(throttle=(1, 60))
    call = drive.send_many(2, "api")[1]
    (first,) = drive.take()
    drive.end(first)
    drive.forward(59.9)
    (run,) = drive.take()
    assert (run.call, run.start_at > drive.clock.now) == (call.id, True)
    assert lose(drive, run)
    assert (drive.row(call).attempt, drive.row(call).errors) == (0, [])


@pytest.mark.deliveries("broker")
def test_a_message_whose_process_is_gone_before_the_claim_goes_back_unspent(drive: Broker) -> None:
    drive.key(concurrency=1)
    call = drive.send("api")
    message = drive.mailbox.take()
    assert message is not None
    held = Run(call=call.id, ticket=message[1], attempt=0, start_at=drive.clock.now, worker="one")
    assert drive.lose(held)
    assert (drive.row(call).attempt, drive.row(call).errors) == (0, [])
    assert drive.claim(*message) is None
    assert [run.call for run in drive.take()] == [call.id]


# A worker that is stopped


def test_a_worker_that_is_stopped_ends_only_what_it_runs(drive: Drive) -> None:
    drive.key(concurrency=2)
    mine = started(drive, "api", retry=RETRY)
    others = started(drive, "api", worker="two")
    drive.beat(mine, others, worker="one")
    second = drive.send("api")
    assert faults.stop(drive, worker="one") == 1
    row = drive.row(mine)
    assert (row.state, row.attempt, row.error["type"], row.crashes) == ("retryable", 1, "WorkerLost", 0)
    assert drive.state(others) == State.ACTIVE
    assert [run.call for run in drive.take(worker="two")] == [second.id]
    assert faults.stop(drive, worker="one") == 0
    assert drive.end(others)


@pytest.mark.deliveries("broker")
def test_a_worker_that_is_stopped_puts_back_the_messages_that_it_has_not_claimed(drive: Broker) -> None:
    drive.key(concurrency=1)
    call = drive.send("api")
    messages = drive.mailbox.empty()
    assert faults.stop(drive, messages=messages) == 1
    assert (drive.row(call).attempt, drive.row(call).errors) == (0, [])
    (run,) = drive.take(worker="two")
    assert (run.call, run.attempt) == (call.id, 1)


@pytest.mark.deliveries("broker")
def test_a_worker_with_a_second_copy_of_a_message_ends_nothing_when_it_stops_or_falls_silent(drive: Broker) -> None:
    drive.key(concurrency=1)
    call = drive.send("api")
    message = drive.mailbox.take()
    assert message is not None
    run = drive.claim(*message)
    assert run is not None
    drive.beat(run)
    assert drive.beat(run, worker="two") == 0
    assert faults.stop(drive, worker="two", messages=[message]) == 0
    drive.clock.forward(50)
    drive.beat(run)
    drive.clock.forward(30)
    assert drive.recover() == 0
    assert (drive.state(call), drive.row(call).attempt) == (State.ACTIVE, 1)
    assert drive.end(run)
