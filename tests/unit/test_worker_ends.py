"""The ends of a process's calls that are not recorded yet: none is lost, none is brought twice."""

from threading import Thread
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from dispatcher.ending import completed
from dispatcher.lifecycle.finish import Ended
from dispatcher.worker import ends as module
from dispatcher.worker.ends import Ends


class Run:
    """A run that has completed."""

    def __init__(self) -> None:
        self.end = completed(None)
        self.is_plain = True
        call, ticket = uuid4(), uuid4()
        self.start = SimpleNamespace(
            call=SimpleNamespace(id=call, ticket=ticket),
        )
        self.ended = Ended(call_id=call, ticket=ticket, claim_id=ticket, ending=self.end)


def made(ends: Ends, count: int) -> list[Any]:
    runs: list[Any] = [Run() for _ in range(count)]
    for run in runs:
        ends.add(run)
    return runs


def test_ends_are_taken_once_in_their_order() -> None:
    ends = Ends()
    runs = made(ends, 3)
    assert len(ends) == 3
    assert [each.call_id for each in ends.unrecorded] == [run.start.call.id for run in runs]
    assert ends.take() == runs
    assert ends.take() == []
    assert len(ends) == 0


def test_those_that_a_trip_could_not_bring_come_first_in_the_next() -> None:
    ends = Ends()
    runs = made(ends, 2)
    taken = ends.take()
    later = made(ends, 2)
    ends.take_again(taken)
    assert ends.take() == [*runs, *later]


def test_an_end_whose_call_was_locked_comes_again_later_each_time_and_then_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    ends = Ends()
    run, _ = made(ends, 2)
    taken, pauses = ends.take(), list[float]()
    for _ in range(9):
        ends.settle(taken, [run.start.call.id])
        assert ends.next_at is not None
        pauses.append(round(ends.next_at - now[0], 2))
        assert ends.take() == []
        assert [each.call_id for each in ends.unrecorded] == [run.start.call.id]
        now[0] = ends.next_at
        taken = ends.take()
        assert taken == [run]
    assert pauses == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1, 1, 1]
    ends.settle(taken, [])
    assert (ends.next_at, ends.unrecorded, ends.take()) == (None, [], [])


def test_ends_that_threads_add_while_others_are_taken_are_all_taken() -> None:
    ends, taken, count = Ends(), list[Any](), 300
    adding = [Thread(target=made, args=[ends, count]) for _ in range(4)]
    for thread in adding:
        thread.start()
    while any(thread.is_alive() for thread in adding) or len(ends):
        taken += ends.take()
    assert len(taken) == len({*map(id, taken)}) == 4 * count


def test_ends_that_are_dropped_are_not_brought() -> None:
    ends = Ends()
    made(ends, 2)
    taken = ends.take()
    ends.settle(taken, [run.start.call.id for run in taken])
    made(ends, 1)
    ends.drop()
    assert (len(ends), ends.next_at, ends.take()) == (0, None, [])
