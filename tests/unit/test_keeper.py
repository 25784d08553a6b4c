"""What the main process of a worker does about the calls of its loops."""

import signal
from collections.abc import Iterator
from math import inf
from unittest.mock import Mock
from uuid import uuid4

import pytest
from celery.worker import state

from dispatcher.worker import loop
from dispatcher.worker.keeper import Keeper
from dispatcher.worker.loop import Options
from dispatcher.worker.pool import Seat
from dispatcher.worker.shared import Running, Shared

CALL, TICKET = uuid4(), uuid4()
RUNS = Running(call=CALL, ticket=TICKET, task="noop", attempt=1, began=0.0, soft=inf, hard=inf)


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the loops whose tasks were interrupted, as a pool of greenlets has it."""
    found: list[int] = []
    monkeypatch.setattr(loop, "interrupt", lambda index, error: found.append(index) or True)
    return found


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch) -> Iterator[Keeper]:
    """Give one of a pool of greenlets with two loops; it has no pool, and looks when it is asked to."""
    monkeypatch.setattr(Keeper, "wake", Mock())
    made = object.__new__(Keeper)
    made.shared, made._to_terminate = Shared(), {}
    made._seats = {index: Seat(made.shared.place(index), 0.0) for index in range(2)}
    made.options = Options(worker=uuid4(), hostname="here", tasks=["noop"], is_forked=False)
    yield made
    made.shared.close()


def test_a_call_that_runs_is_terminated_at_once(keeper: Keeper, interrupted: list[int]) -> None:
    keeper.shared.place(0).begin_trip()
    keeper.shared.place(1).hold([(CALL, TICKET)])
    keeper.shared.place(1).run(RUNS)
    assert keeper.terminate(CALL, signal.SIGTERM) is None
    keeper.look()
    assert interrupted == [1], "once, though the trip of another loop is under way"


def test_a_call_that_a_loop_has_taken_is_terminated_as_it_begins(keeper: Keeper, interrupted: list[int]) -> None:
    place = keeper.shared.place(0)
    place.begin_trip()
    keeper.terminate_started(CALL, signal.SIGTERM)  # the answer of the trip may bring it
    place.hold([(CALL, TICKET)])
    place.end_trip()
    keeper.look()
    assert interrupted == []
    place.run(RUNS)
    keeper.look()
    assert interrupted == [0]
    keeper.look()
    assert interrupted == [0], "once"


def test_a_call_that_no_loop_has_is_not_terminated_when_it_runs_later(keeper: Keeper, interrupted: list[int]) -> None:
    place = keeper.shared.place(0)
    keeper.terminate_started(CALL, signal.SIGTERM)
    keeper.look()
    place.hold([(CALL, TICKET)])
    place.run(RUNS)
    keeper.look()
    assert interrupted == []


def test_a_loop_that_makes_a_trip_does_not_leave_for_messages(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper.pool = Mock(size=2, is_solo=False)
    monkeypatch.setattr(state, "reserved_requests", {1, 2})
    assert keeper.alternates
    place = keeper.shared.place(0)
    place.begin_trip()
    assert not keeper.alternates, "it may bring calls"
    place.hold([(CALL, TICKET)])
    place.end_trip()
    assert not keeper.alternates
    place.hold([])
    assert keeper.alternates
