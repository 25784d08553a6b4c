"""A soft time limit is raised by a signal's handler, at any line: what was done until then counts, once."""

import itertools
import signal
import sys
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from threading import Event, Thread, get_ident
from types import FrameType
from typing import Any, Self

import pytest
from billiard.exceptions import SoftTimeLimitExceeded
from django.db import connection, transaction

import dispatcher
from dispatcher import engine
from dispatcher.lifecycle import claim
from dispatcher.lifecycle.run import Failed, Returned
from dispatcher.models import CallQueue, RateLimitKey, Slot
from dispatcher.states import State
from tests import db_admin
from tests.builders import committed, key, seen, states, ticket_of
from tests.races.lockstep import DEADLINE, eventually, holding

pytestmark = [committed, pytest.mark.pooler]

ENGINE = f"{Path(dispatcher.__file__).parent}/"


def limit(*_: Any) -> None:
    """Do what billiard's handler of SIGUSR1 does."""
    raise SoftTimeLimitExceeded


@pytest.fixture(autouse=True)
def _soft_time_limits() -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, limit)
    yield
    signal.signal(signal.SIGUSR1, before)
    connection.close()


def waiting() -> set[tuple[int, datetime]]:
    """Return the server's processes that wait for a lock in the database of the tests, and since when they ask."""
    ask = "SELECT pid, query_start FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = %s"
    return {*db_admin.monitor().execute(ask, [connection.settings_dict["NAME"]])}


class Interruption:
    """Locks the keys, and raises the soft time limit where the test's own thread then waits."""

    def __init__(self, *, is_tried_again: bool = True) -> None:
        self.is_tried_again = is_tried_again

    def __enter__(self) -> Self:
        self.main = get_ident()
        self.is_locked = Event()
        self.thread = Thread(target=self._strike)
        self.errors: list[BaseException] = []
        return self

    def begin(self) -> None:
        """Take the lock."""
        self.thread.start()
        assert self.is_locked.wait(DEADLINE)

    def __exit__(self, *_: object) -> None:
        self.thread.join()
        assert self.errors == []

    def _strike(self) -> None:
        try:
            with holding("LOCK TABLE dispatcher_ratelimitkey IN ACCESS EXCLUSIVE MODE"):
                self.is_locked.set()
                stopped = eventually(waiting)
                signal.pthread_kill(self.main, signal.SIGUSR1)
                # What is left to be done is asked for again; behind a pooler by the same process of the server, maybe.
                eventually(lambda: not self.is_tried_again or waiting() - stopped)
        except BaseException as error:  # noqa: BLE001 -- raised by the test's own thread
            self.errors.append(error)


def test_a_claim_that_is_interrupted_goes_back_unspent_and_leaves_no_broken_connection(call: CallQueue) -> None:
    ran: list[int] = []
    with Interruption() as interruption:
        interruption.begin()
        assert engine.execute(call.id, ticket_of(call), partial(ran.append, 1)) is claim.Refused.INTERRUPTED
    again = seen(call)
    # It has room, so it was admitted again at once.
    assert (ran, again.state, again.attempt, again.ticket != call.ticket) == ([], State.DISPATCHED, 0, True)
    assert engine.execute(call.id, ticket_of(again), partial(ran.append, 2)) == Returned(result=None)
    assert ran == [2]


@pytest.mark.parametrize("how", ["returns", "raises"])
def test_an_end_that_is_interrupted_is_recorded_as_it_was(call: CallQueue, how: str) -> None:
    behind = CallQueue.objects.send("noop", keys=["api"])
    with Interruption() as interruption:

        def task() -> str:
            interruption.begin()
            if how == "raises":
                message = "bad"
                raise ValueError(message)
            return "done"

        outcome = engine.execute(call.id, ticket_of(call), task)
    ended = seen(call)
    assert ended.attempt == 1
    if how == "returns":
        assert outcome == Returned(result="done")
        assert (ended.state, ended.result) == (State.COMPLETED, "done")
    else:
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, ValueError)
        assert (ended.state, [error["type"] for error in ended.errors]) == (State.RETRYABLE, ["ValueError"])
    assert states([behind]) == [State.DISPATCHED]
    assert not Slot.objects.filter(call=call).exists()


def test_a_query_of_the_tasks_own_that_is_interrupted_leaves_no_broken_connection(call: CallQueue) -> None:
    with Interruption() as interruption:

        def task() -> int:
            interruption.begin()
            return RateLimitKey.objects.count()

        outcome = engine.execute(call.id, ticket_of(call), task)
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, SoftTimeLimitExceeded)
    assert (seen(call).state, seen(call).attempt, len(seen(call).errors)) == (State.RETRYABLE, 1, 1)
    assert RateLimitKey.objects.count() == 1


def test_a_statement_inside_a_callers_transaction_that_is_interrupted_rolls_it_back() -> None:
    key("api")
    with Interruption(is_tried_again=False) as interruption:

        def send() -> None:
            with transaction.atomic():
                interruption.begin()
                CallQueue.objects.send("noop", keys=["api"])

        with pytest.raises(SoftTimeLimitExceeded):
            send()
    assert not CallQueue.objects.exists()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["returns", "raises"])
def test_a_limit_at_any_line_after_the_task_changes_nothing(how: str) -> None:
    """Raise it before each line in turn that the engine runs once the task has ended."""
    key("api", concurrency=1)
    for number in itertools.count(1):
        call = seen(CallQueue.objects.send("noop", keys=["api"]))
        strike = Strike(number)
        with strike:
            outcome = engine.execute(call.id, ticket_of(call), partial(strike.task, how))
        ended = seen(call)
        if how == "returns":
            assert outcome == Returned(result="done"), strike.line
            assert (ended.state, ended.result) == (State.COMPLETED, "done"), strike.line
        else:
            assert isinstance(outcome, Failed), strike.line
            assert ended.state == State.RETRYABLE, strike.line
            assert [error["type"] for error in ended.errors] == ["ValueError"], strike.line
        assert ended.attempt == 1, strike.line
        if strike.line is None:
            assert number > 50
            break


class Strike:
    """Raises the soft time limit before one of the lines that the engine runs after the task."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.has_ended = False
        self.line: tuple[str, int] | None = None
        """Where it struck; None while it has not."""

    def task(self, how: str) -> str:
        self.has_ended = True
        if how == "raises":
            message = "bad"
            raise ValueError(message)
        return "done"

    def __enter__(self) -> None:
        self.before = sys.gettrace()
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self.before)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if ENGINE not in frame.f_code.co_filename:
            return None
        if event == "line" and self.has_ended:
            self.left -= 1
            if self.left == 0:
                self.line = (frame.f_code.co_filename, frame.f_lineno)
                raise SoftTimeLimitExceeded
        return self._trace
