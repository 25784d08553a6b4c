"""What people do to calls: cancel, revoke, retry, activate, run now. A call moves as the table of moves allows."""

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from django.db import transaction

from dispatcher import api
from dispatcher.models import CallQueue
from dispatcher.states import DUE, IN_FLIGHT, MOVES, TERMINAL, WAITING, State
from tests.drive import Drive, Run, ids


def in_state(drive: Drive, state: State) -> tuple[CallQueue, Run | None]:
    """Return a call that has come to this state, and its last attempt if there was one."""
    if state in {State.PENDING, State.AVAILABLE}:
        api.pause("api")
    call = drive.send("api", scheduled_at=drive.at(60) if state is State.SCHEDULED else None, retry={"max_attempts": 2})
    run = None
    match state:
        case State.PENDING:
            CallQueue.objects.filter(id=call.id).update(state=state)
            api.resume("api")
        case State.CANCELLED:
            api.cancel(call)
        case State.ACTIVE | State.COMPLETED | State.RETRYABLE | State.DISCARDED:
            (run,) = drive.take()
    if run and state is not State.ACTIVE:
        drive.end(run, error=None if state is State.COMPLETED else ValueError())
    if state is State.DISCARDED:
        drive.forward(60)
        (run,) = drive.take()
        drive.end(run, error=ValueError())
    assert drive.state(call) is state
    return call, run


STATES = [state for state in State if state is not State.DISPATCHED]
"""Only the broker's calls are admitted before they start."""


def every_state(drive: Drive) -> Iterator[tuple[State, CallQueue, Run | None]]:
    """Return a call in each state, one at a time."""
    drive.key()
    for state in STATES:
        call, run = in_state(drive, state)
        yield state, call, run
        api.cancel(call)
        api.resume("api")


def waits(state: State) -> bool:
    return state in {*WAITING, *DUE}


@pytest.mark.parametrize("state", STATES)
def test_a_call_moves_as_the_table_of_moves_has_it_or_not_at_all(drive: Drive, state: State) -> None:
    check_moves(drive, state)


@pytest.mark.deliveries("broker")  # Only these are admitted before they start.
def test_an_admitted_call_moves_as_the_table_of_moves_has_it_or_not_at_all(drive: Drive) -> None:
    check_moves(drive, State.DISPATCHED)


def check_moves(drive: Drive, state: State) -> None:
    """Do to calls in this state whatever has no test of its own below."""
    verbs: dict[str, Callable[[CallQueue, Any], object]] = {
        "activate": lambda call, _: api.activate(call),
        "revoke": lambda call, _: drive.revoke(call),
        "tick": lambda *_: drive.tick(),
        "recover": lambda *_: drive.recover(),
    }
    if state in {State.ACTIVE, State.RETRYABLE, State.COMPLETED, State.DISCARDED}:
        verbs |= {
            "end": lambda _, run: drive.end(run, result=1),
            "fail": lambda _, run: drive.end(run, error=ValueError()),
            "give back": lambda _, run: drive.give_back(run),
        }
    drive.key()
    for name, verb in verbs.items():
        call, run = in_state(drive, state)
        api.pause("api")
        verb(call, run)
        after = drive.row(call)
        assert after.state == state or State(after.state) in MOVES[state], name
        assert bool(drive.held(call)) == (after.ticket is not None) == (after.state in IN_FLIGHT), name
        assert (after.finished_at is not None) == (after.state in TERMINAL), name
        api.cancel(call)
        api.resume("api")


# Cancel


def test_a_call_that_has_not_started_is_cancelled_and_no_other(drive: Drive) -> None:
    for state, call, _ in every_state(drive):
        before = drive.row(call)
        assert api.cancel([call.id, uuid4()]) == ([call.id] if waits(state) else []), state
        after = drive.row(call)
        if waits(state):
            assert (after.state, after.finished_at, drive.held(call)) == (State.CANCELLED, drive.clock.now, {})
        else:
            assert (after.state, after.ticket, after.finished_at) == (state, before.ticket, before.finished_at)


@pytest.mark.deliveries("broker")  # Only these are admitted before they start.
def test_an_admitted_call_is_cancelled_its_room_goes_on_and_its_message_does_nothing(drive: Drive) -> None:
    drive.key(concurrency=1)
    admitted, behind = drive.send("api"), drive.send("api")
    assert drive.states([admitted, behind]) == [State.DISPATCHED, State.AVAILABLE]
    assert api.cancel(admitted) == [admitted.id]
    assert ids(drive.take(2)) == [behind.id]
    assert (drive.state(admitted), drive.row(admitted).attempt, drive.use()) == (State.CANCELLED, 0, 1)


def test_a_cancelled_call_that_stood_in_the_way_lets_those_behind_it_go(drive: Drive) -> None:
    drive.key(concurrency=3)
    drive.send(costs={"api": 2})
    drive.take()
    dear, cheap = drive.send(costs={"api": 3}), drive.send("api")
    assert drive.take() == []
    api.cancel(dear)
    assert ids(drive.take()) == [cheap.id]


def test_a_cancel_within_a_transaction_that_rolls_back_changes_nothing(drive: Drive) -> None:
    drive.key(concurrency=1)
    call = drive.send("api")
    with transaction.atomic():
        assert api.cancel(call) == [call.id]
        transaction.set_rollback(True)
    assert ids(drive.take()) == [call.id]


# Revoke


def test_a_revoked_call_that_waits_is_cancelled(drive: Drive) -> None:
    drive.key(concurrency=1)
    calls = drive.send_many(3, "api")
    (run,) = drive.take()
    drive.revoke(calls[1])
    assert drive.states(calls) == [State.ACTIVE, State.CANCELLED, State.AVAILABLE]
    assert ids(drive.take(ends=[run])) == [calls[2].id]


def test_a_revoked_call_that_runs_may_end_well_and_is_not_tried_again(drive: Drive) -> None:
    good, bad = drive.send(), drive.send()
    runs = drive.take(2)
    drive.revoke(good, bad)
    assert drive.states(runs) == [State.ACTIVE] * 2
    drive.end(runs[0])
    drive.end(runs[1], error=ValueError())
    assert drive.state(good) is State.COMPLETED
    drive.forward(3600)
    assert drive.take() == []
    row = drive.row(bad)
    assert (row.state, row.attempt) == (State.CANCELLED, 1)
    api.retry(bad)
    assert ids(drive.take()) == [bad.id]


def test_a_revoked_call_that_was_given_back_does_not_follow_the_one_that_ended(drive: Drive) -> None:
    drive.key(concurrency=2)
    revoked, _, third = drive.send_many(3, "api")
    run, other = drive.take(2)
    drive.limit(concurrency=1)
    drive.revoke(run)
    drive.give_back(run)
    assert drive.take() == []
    started = drive.take(ends=[other])
    drive.tick()
    assert ids([*started, *drive.take()]) == [third.id]
    assert drive.state(revoked) == State.CANCELLED


# Retry


def test_an_ended_call_waits_again_from_the_beginning_and_no_other(drive: Drive) -> None:
    for state, call, _ in every_state(drive):
        api.pause("api")
        before = drive.row(call)
        assert api.retry([call.id, uuid4()]) == ([call.id] if state in TERMINAL else []), state
        after = drive.row(call)
        if state in TERMINAL:
            assert (after.state, after.attempt, after.ticket) == (State.AVAILABLE, 0, None)
            empty = (after.result, after.reason, after.started_at, after.finished_at, after.scheduled_at)
            assert empty == (None,) * len(empty)
            assert (after.errors, after.position, after.args) == (before.errors, before.position, before.args)
        else:
            assert (after.state, after.attempt, after.ticket) == (state, before.attempt, before.ticket)


def test_a_retried_call_has_all_its_attempts_and_keeps_its_errors(drive: Drive) -> None:
    drive.key()
    call, _ = in_state(drive, State.DISCARDED)
    api.retry(call)
    (run,) = drive.take()
    drive.end(run, error=ValueError())
    drive.forward(60)
    (run,) = drive.take()
    drive.end(run, result=7)
    row = drive.row(call)
    assert (row.state, row.result, row.attempt, len(row.errors)) == (State.COMPLETED, 7, 2, 3)


def test_a_retried_call_does_not_expire_by_the_time_that_it_was_sent_with(drive: Drive) -> None:
    call = drive.send(expires_at=drive.at(10))
    api.cancel(call)
    drive.forward(60)
    api.retry(call)
    drive.tick()
    assert ids(drive.take()) == [call.id]


# Activate


def test_a_pending_call_starts_when_it_is_activated_and_not_before(drive: Drive) -> None:
    drive.key(concurrency=1)
    now, later, cancelled = drive.send_many(3, "api", scheduled_at=drive.at(60))
    CallQueue.objects.update(state=State.PENDING)
    CallQueue.objects.exclude(id=later.id).update(scheduled_at=None)
    drive.tick()
    assert drive.take() == []
    assert sorted(api.activate([now, later])) == [now.id, later.id]
    assert drive.drain() == [now.id]
    assert drive.states([later, cancelled]) == [State.SCHEDULED, State.PENDING]
    assert api.activate([now, later]) == []
    drive.forward(60)
    assert drive.drain() == [later.id]


def test_a_pending_call_starts_when_it_is_activated_with_one_before_it_whose_time_has_not_come(drive: Drive) -> None:
    drive.key(concurrency=1)
    later, now = drive.send_many(2, "api", scheduled_at=drive.at(60))
    CallQueue.objects.filter(id__in=[later.id, now.id]).update(state=State.PENDING)
    CallQueue.objects.filter(id=now.id).update(scheduled_at=None)
    api.activate([later, now])
    assert drive.drain() == [now.id]


# Run now


def test_a_call_that_waits_runs_now_and_no_other(drive: Drive) -> None:
    for state, call, run in every_state(drive):
        assert api.run_now([call.id, uuid4()]) == ([call.id] if waits(state) else []), state
        api.resume("api")
        assert ids(drive.take()) == ([call.id] if waits(state) else []), state
        assert run is None or drive.row(call).attempt == run.attempt + waits(state)


def test_a_call_that_is_to_run_now_goes_first_in_its_lane_and_several_keep_their_order(drive: Drive) -> None:
    drive.key(concurrency=1)
    drive.send("api")
    (running,) = drive.take()
    calls = drive.send_many(5, "api")
    api.run_now(calls[1])
    api.run_now([calls[4], calls[3]])
    drive.end(running)
    assert drive.drain() == [calls[number].id for number in (3, 4, 1, 0, 2)]


def test_a_call_that_is_to_run_now_keeps_to_its_limits_and_to_priorities(drive: Drive) -> None:
    drive.key(concurrency=1)
    drive.send("api")
    (running,) = drive.take()
    call, urgent = drive.send("api", scheduled_at=drive.at(60)), drive.send("api", priority=1)
    assert api.run_now(call) == [call.id]
    assert (drive.take(), drive.state(call)) == ([], State.AVAILABLE)
    drive.end(running)
    assert drive.drain() == [urgent.id, call.id]


# Which calls


def test_calls_are_named_by_themselves_by_their_ids_or_by_a_query_and_nothing_is_done_to_none(drive: Drive) -> None:
    for verb in (api.cancel, api.retry):
        one, two, three, four = calls = drive.send_many(4)
        if verb is api.retry:
            api.cancel(calls)
        assert verb(one) == [one.id]
        assert verb(two.id) == [two.id]
        assert verb(str(three.id)) == [three.id]
        assert verb(CallQueue.objects.filter(id=four.id)) == [four.id]
    assert (api.cancel([]), api.retry([]), api.run_now([]), api.activate([])) == ([], [], [], [])
