"""A task that asks for another attempt may name another queue or priority: the call goes on there, under its limits.

One that replaces itself makes its call another task's, with other keys, and spends no attempt.
"""

from typing import Any

import pytest

from dispatcher.states import State
from tests.drive import Drive, asking_again, becoming_another, ids

pytestmark = pytest.mark.deliveries("direct", "broker")  # A worker over HTTP reports no changes with a failure.


def test_a_call_moves_to_a_queue_that_no_call_was_sent_to_and_keeps_to_its_limits(drive: Drive, settings: Any) -> None:
    settings.DISPATCHER = {"keys": {"queue:*": {"concurrency": 1}}}
    drive.key("api", concurrency=5)
    slow = drive.beside(drive.delivery, "slow")
    first, second = drive.send("api"), drive.send("api", priority=-1)
    runs = drive.take()
    drive.end(runs[0], error=asking_again(queue="slow"))
    runs = drive.take()
    drive.end(runs[0], error=asking_again(queue="slow"))
    drive.forward(1)
    assert drive.take(2) == []
    (run,) = slow.take(2)
    assert (run.call, run.attempt, drive.row(first).queue) == (first.id, 2, "slow")
    assert drive.held(run) == {"api": 1, "queue:slow": 1}
    slow.end(run)
    assert ids(slow.take(2)) == [second.id]


@pytest.mark.parametrize(("priority", "order"), [(5, [0, 2]), (-5, [2, 0])])
def test_a_call_moves_to_another_priority(drive: Drive, priority: int, order: list[int]) -> None:
    drive.key(concurrency=1)
    calls = drive.send_many(3, "api")
    (run,) = drive.take()
    drive.end(run, error=asking_again(priority=priority))
    assert [call for call in drive.drain() if call != calls[1].id] == [calls[number].id for number in order]


def test_a_call_that_moves_leaves_its_room_to_those_behind_it(drive: Drive) -> None:
    drive.key(concurrency=1)
    moved, behind = drive.send_many(2, "api")
    (run,) = drive.take()
    drive.end(run, error=asking_again(wait=1, queue="slow"))
    assert ids(drive.take()) == [behind.id]
    drive.forward(1)
    assert (drive.state(moved), drive.held(moved)) == (State.AVAILABLE, {})


def test_a_call_goes_on_at_once_with_other_arguments(drive: Drive) -> None:
    drive.send(retry={"max_attempts": 2})
    (run,) = drive.take()
    drive.end(run, error=asking_again(args='["again"]'))
    (again,) = drive.take()
    assert (again.call, again.attempt, drive.row(again).args) == (run.call, 2, ["again"])


def test_a_late_attempt_moves_nothing(drive: Drive) -> None:
    drive.send()
    (run,) = drive.take()
    drive.end(run)
    assert not drive.end(run, error=asking_again(queue="slow"))
    assert (drive.row(run).queue, drive.state(run)) == (drive.queue, State.COMPLETED)


def test_a_call_that_becomes_another_tasks_gives_its_room_back_and_waits_for_other_limits(drive: Drive) -> None:
    drive.key("api", concurrency=1)
    drive.key("smtp", concurrency=1)
    replaced, behind, holder = drive.send("api"), drive.send("api"), drive.send("smtp")
    runs = {run.call: run for run in drive.take(2)}
    drive.end(runs[replaced.id], error=becoming_another("smtp"))
    assert drive.held(runs[replaced.id]) == {}
    assert ids(drive.take(2)) == [behind.id]
    drive.end(runs[holder.id])
    (again,) = drive.take(2)
    assert (again.call, again.attempt, drive.row(replaced).args) == (replaced.id, 1, ["another"])
    assert drive.held(again) == {"smtp": 1}
    assert not drive.end(runs[replaced.id], error=becoming_another("api")), "its ticket is another one by now"
    drive.end(again)
    assert drive.state(replaced) == State.COMPLETED
