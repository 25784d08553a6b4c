"""Calls that come to workers and go back without a start: they wait, each time for longer, and nothing is spent."""

from typing import Any

import pytest

from dispatcher import api
from dispatcher.models import CallQueue
from dispatcher.states import State
from tests import faults
from tests.deliveries.broker import Broker
from tests.drive import TASK, Drive, Run

# Over HTTP a worker fetches whatever its queues hold, and gives back what it does not know.
pytestmark = pytest.mark.deliveries("direct", "broker")
messages = pytest.mark.deliveries("broker")

LEASE = 300


@pytest.fixture(autouse=True)
def _leases(drive: Drive, settings: Any) -> None:
    settings.DISPATCHER = {"dispatch_lease": LEASE}


def wait_of(drive: Drive, call: CallQueue) -> float:
    """Return for how many seconds from now a call is put off."""
    row = drive.row(call)
    assert row.state == State.SCHEDULED
    return float((row.scheduled_at - drive.clock.now).total_seconds())


def test_a_call_of_a_task_that_no_worker_knows_waits_spends_nothing_and_leaves_its_room(drive: Drive) -> None:
    drive.key(concurrency=1)
    faults.come(drive, "other")
    call = drive.send("api", retry={"max_attempts": 1})
    faults.meet_unknown(drive)
    assert 55 < wait_of(drive, call) <= 60
    assert (drive.row(call).attempt, drive.row(call).errors, drive.held(call)) == (0, [], {})
    other = drive.send("api")
    assert [run.call for run in drive.take()] == [other.id]


def test_it_goes_on_when_a_worker_of_its_queue_comes_that_knows_it(drive: Drive) -> None:
    faults.come(drive, "other")
    calls = drive.send_many(2)
    for _ in calls:
        faults.meet_unknown(drive)
    faults.come(drive, TASK, worker="two", queues=["elsewhere"])
    assert drive.states(calls) == [State.SCHEDULED] * 2
    faults.come(drive, "other", TASK)
    assert [(run.call, run.attempt) for run in drive.take(2)] == [(call.id, 1) for call in calls]


def test_where_another_worker_knows_it_the_call_comes_there_within_seconds(drive: Drive) -> None:
    faults.come(drive, TASK, worker="two")
    call = drive.send()
    waits = []
    for _ in range(3):
        faults.meet_unknown(drive)
        waits.append(wait_of(drive, call))
        api.run_now([call.id])
    assert waits == pytest.approx([0.5, 1.0, 1.5], abs=0.2)


def test_the_wait_grows_while_no_worker_knows_it_up_to_an_hour(drive: Drive) -> None:
    faults.come(drive, "other")
    call = drive.send()
    waits = []
    for _ in range(9):
        faults.meet_unknown(drive)
        waits.append(round(wait_of(drive, call) / 60))
        api.run_now([call.id])
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


@pytest.mark.parametrize("how", ["started", "retried by hand"])
def test_a_call_that_was_started_or_retried_by_hand_begins_with_a_short_wait_again(drive: Drive, how: str) -> None:
    faults.come(drive, "other")
    call = drive.send()
    for _ in range(3):
        faults.meet_unknown(drive)
        api.run_now([call.id])
    if how == "started":
        (run,) = drive.take()
        drive.end(run, error=ValueError())
        api.run_now([call.id])
    else:
        api.cancel([call.id])
        api.retry([call.id])
        if isinstance(drive, Broker):
            drive.mailbox.take()
    faults.meet_unknown(drive)
    assert round(wait_of(drive, call) / 60) == 1


@messages
def test_a_late_message_of_an_unknown_task_changes_nothing(drive: Broker) -> None:
    call = drive.send()
    message = drive.mailbox.take()
    assert message is not None
    run = drive.claim(*message)
    assert run is not None
    faults.return_unknown(*message)
    assert drive.state(call) == State.ACTIVE


# Messages that are lost again and again


def lose_message(drive: Broker) -> None:
    drive.mailbox.empty()
    drive.clock.forward(LEASE + 1)
    assert drive.recover() == 1


@messages
def test_a_call_whose_messages_are_lost_again_and_again_waits_longer_each_time(drive: Broker) -> None:
    call = drive.send()
    for _ in range(2):
        lose_message(drive)
        assert drive.state(call) == State.DISPATCHED
    waits = []
    for _ in range(8):
        lose_message(drive)
        waits.append(round(wait_of(drive, call) / 60))
        api.run_now([call.id])
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    assert (drive.row(call).attempt, drive.row(call).errors) == (0, [])


@messages
def test_short_leases_make_short_waits(drive: Broker, settings: Any) -> None:
    settings.DISPATCHER = {"dispatch_lease": 2}
    call = drive.send()
    for _ in range(8):
        lose_message(drive)
        api.run_now([call.id])
    lose_message(drive)
    assert 20 < wait_of(drive, call) <= 24


@messages
def test_a_message_whose_process_dies_again_and_again_waits_longer_too(drive: Broker) -> None:
    call = drive.send()
    for _ in range(3):
        message = drive.mailbox.take()
        assert message is not None
        held = Run(call=call.id, ticket=message[1], attempt=0, start_at=drive.clock.now, worker="one")
        assert drive.lose(held)
    assert 55 < wait_of(drive, call) <= 60
