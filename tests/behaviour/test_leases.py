"""What a process that fell silent, a lost message or a deleted call has left is put right when its lease is over."""

import logging
from typing import Any

import pytest

from dispatcher.models import CallQueue
from dispatcher.states import State
from tests import faults
from tests.deliveries.broker import Broker
from tests.drive import Drive, Run
from tests.races.lockstep import DEADLINE, actors, at_once

pytestmark = pytest.mark.pooler

LEASE = 60
ONCE = {"max_attempts": 1}


@pytest.fixture(autouse=True)
def _leases(drive: Drive, settings: Any) -> None:
    settings.DISPATCHER = {"run_lease": LEASE, "visibility": LEASE, "dispatch_lease": LEASE}


def started(drive: Drive, count: int = 1) -> list[Run]:
    """Let a worker start calls, and show that it has."""
    runs = drive.take(count)
    assert drive.beat(*runs) == len(runs) == count
    return runs


# Silence


def test_a_worker_that_fell_silent_costs_its_call_an_attempt(drive: Drive) -> None:
    drive.key(concurrency=1)
    call = drive.send("api")
    started(drive)
    drive.clock.forward(LEASE - 1)
    drive.recover()
    assert drive.state(call) == State.ACTIVE
    drive.clock.forward(1.1)
    drive.recover()
    row = drive.row(call)
    # Without a wait it goes on at once.
    state, error = ("available", "LeaseLapsed") if drive.delivery == "http" else ("retryable", "WorkerLost")
    assert (row.state, row.attempt, row.error_count, row.error["attempt"]) == (state, 1, 1, 1)
    assert row.error["type"] == error
    assert drive.use() == 0
    drive.forward(LEASE)
    (again,) = drive.take()
    assert again.attempt == 2


def test_a_call_whose_workers_are_always_lost_is_discarded_in_the_end(drive: Drive) -> None:
    call = drive.send(retry={"max_attempts": 2})
    for _ in range(2):
        started(drive)
        drive.clock.forward(LEASE + 1)
        drive.recover()
        drive.forward(10)
    assert (drive.state(call), drive.row(call).error_count) == (State.DISCARDED, 2)


def test_a_heartbeat_keeps_a_call_and_all_its_slots(drive: Drive) -> None:
    for name in ("api", "tenant"):
        drive.key(name, concurrency=1)
    call = drive.send("api", "tenant")
    (run,) = started(drive)
    for _ in range(4):
        drive.clock.forward(LEASE - 10)
        assert drive.beat(run) == 1
        drive.recover()
    assert drive.held(call) == {"api": 1, "tenant": 1}
    drive.clock.forward(LEASE + 1)
    drive.recover()
    assert (drive.state(call), drive.held(call)) != (State.ACTIVE, {"api": 1, "tenant": 1})
    assert drive.row(call).error_count == 1


def test_the_room_of_what_was_recovered_goes_to_those_who_wait(drive: Drive) -> None:
    drive.key(concurrency=2)
    lost = drive.send_many(2, "api", retry=ONCE)
    started(drive, 2)
    waiting = drive.send_many(3, "api")
    assert drive.take(3) == []
    drive.clock.forward(LEASE + 1)
    drive.recover()
    assert drive.states(lost) == [State.DISCARDED] * 2
    assert [run.call for run in drive.take(3)] == [call.id for call in waiting[:2]]


def test_a_heartbeat_that_comes_while_recovery_looks_saves_the_call(drive: Drive) -> None:
    drive.send_many(2)
    run, other = started(drive, 2)
    drive.clock.forward(LEASE + 1)
    assert drive.beat(other) == 1
    with actors(2) as (heart, recovery):
        heart.open()
        assert heart.do(drive.beat, run) == 1
        recovering = recovery.begin(drive.recover)
        recovery.wait_blocked_or_done(recovering)
        heart.commit()
        assert recovering.result(DEADLINE) == 0
    assert drive.state(run) == State.ACTIVE
    assert drive.end(run)


def test_recoveries_at_once_end_each_attempt_once(drive: Drive) -> None:
    drive.key(concurrency=9)
    calls = drive.send_many(9, "api", retry={"initial_interval": 3600})
    started(drive, 9)
    drive.clock.forward(LEASE + 1)
    at_once(*[drive.recover] * 4)
    assert {(row.attempt, row.error_count) for row in map(drive.row, calls)} == {(1, 1)}
    assert drive.use() == 0


@pytest.mark.deliveries("direct", "broker")
def test_no_more_than_a_batch_is_recovered_at_once_and_it_is_reported(
    drive: Drive, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings.DISPATCHER = {"batch": 2}
    drive.send_many(5)
    started(drive, 5)
    drive.clock.forward(LEASE + 1)
    with caplog.at_level(logging.WARNING, logger="dispatcher"):
        assert [drive.recover() for _ in range(4)] == [2, 2, 1, 0]
    assert "calls put back, as their leases had run out or no worker serves them: 2" in caplog.text


# The answer to a fetch, or to a worker's question for calls, may be lost on the way; a message is not answered.
@pytest.mark.deliveries("direct", "http")
def test_a_start_whose_answer_was_lost_spends_no_attempt(drive: Drive) -> None:
    drive.key(concurrency=2)
    calls = drive.send_many(2, "api", retry=ONCE)
    kept, lost = drive.take(2)
    drive.beat(kept)
    faults.lose_answer(drive, kept, seconds=LEASE - 1)
    assert drive.states(calls) == [State.ACTIVE, State.AVAILABLE]
    assert (drive.row(lost).attempt, drive.row(lost).errors) == (0, [])
    (again,) = drive.take(2)
    assert (again.call, again.attempt) == (lost.call, 1)


# Messages: only a broker has them.

messages = pytest.mark.deliveries("broker")


@messages
def test_a_message_that_was_lost_is_published_again_and_no_attempt_is_spent(drive: Broker) -> None:
    drive.key(concurrency=1)
    call = drive.send("api")
    lost = drive.mailbox.take()
    drive.clock.forward(LEASE)
    assert drive.recover() == 0
    assert drive.mailbox.take() is None
    drive.clock.forward(0.1)
    assert drive.recover() == 1
    assert lost is not None
    assert drive.claim(*lost) is None
    (run,) = drive.take()
    assert (run.call, run.attempt, drive.row(call).errors) == (call.id, 1, [])


@messages
def test_a_message_in_a_line_whose_front_moves_is_left_there(drive: Broker) -> None:
    """What was published later has not been fetched yet, so this one has not had its turn."""
    (first, last) = drive.send_many(2)
    run = drive.claim(*drive.mailbox.empty()[0])
    assert run is not None
    ticket = drive.row(last).ticket
    for _ in range(5):
        drive.clock.forward(LEASE - 10)
        drive.beat(run)
        drive.recover()
    assert (drive.state(first), drive.row(last).ticket) == (State.ACTIVE, ticket)


@messages
def test_a_message_in_a_line_is_published_again_with_the_same_ticket(drive: Broker) -> None:
    (_, last) = drive.send_many(2)
    run = drive.claim(*drive.mailbox.empty()[0])
    assert run is not None
    ticket = drive.row(last).ticket
    for _ in range(2):
        drive.clock.forward(LEASE - 10)
        drive.beat(run)
        drive.recover()
    assert {*drive.mailbox.empty()} == {(last.id, ticket)}


# Calls that were deleted, and slots without a call


def test_the_slot_of_a_call_that_was_deleted_while_it_ran_is_freed_when_its_lease_is_over(drive: Drive) -> None:
    drive.key(concurrency=1)
    running, second = drive.send("api"), drive.send("api")
    started(drive)
    faults.erase(running)
    drive.clock.forward(LEASE - 1)
    drive.recover()
    assert drive.take() == [], "its process may still run"
    drive.clock.forward(2)
    drive.recover()
    assert [run.call for run in drive.take()] == [second.id]


@messages
def test_the_slot_of_a_call_that_was_deleted_before_it_started_is_freed_at_once(drive: Broker) -> None:
    drive.key(concurrency=2)
    gone, last = drive.send_many(2, "api"), drive.send("api")
    assert drive.states([*gone, last]) == [State.DISPATCHED, State.DISPATCHED, State.AVAILABLE]
    faults.erase(*gone)
    drive.recover()
    assert (drive.state(last), drive.use()) == (State.DISPATCHED, 1)


def test_the_slot_of_a_call_that_another_statement_has_ended_is_freed(drive: Drive) -> None:
    drive.key(concurrency=1)
    ended, second = drive.send("api"), drive.send("api")
    started(drive)
    CallQueue.objects.filter(id=ended.id).update(state=State.COMPLETED, ticket=None, finished_at=drive.clock.now)
    drive.clock.forward(LEASE + 1)
    drive.recover()
    assert [run.call for run in drive.take()] == [second.id]


def test_recoveries_at_once_let_in_no_more_than_the_freed_room(drive: Drive) -> None:
    drive.key(concurrency=3)
    gone = drive.send_many(3, "api")
    started(drive, 3)
    waiting = drive.send_many(5, "api")
    faults.erase(*gone)
    drive.clock.forward(LEASE + 1)
    at_once(*[drive.recover] * 4)
    assert [run.call for run in drive.take(5)] == [call.id for call in waiting[:3]]
    assert drive.use() == 3
