"""A call that is given back without having run waits where it stood, and no attempt is spent."""

import pytest

from dispatcher import api
from dispatcher.models import CallQueue
from dispatcher.states import State
from tests.drive import Drive


def test_a_call_that_is_given_back_is_the_next_one_and_spends_no_attempt(drive: Drive) -> None:
    drive.key(concurrency=1)
    first, second = drive.send_many(2, "api")
    (run,) = drive.take()
    assert drive.give_back(run)
    row = drive.row(first)
    assert (row.attempt, row.errors, row.started_at) == (0, [], None)
    (again,) = drive.take(2, worker="two")
    assert (again.call, again.attempt) == (first.id, 1)
    assert drive.end(again)
    assert [each.call for each in drive.take()] == [second.id]


def test_a_call_that_is_given_back_leaves_its_room_to_those_that_can_use_it(drive: Drive) -> None:
    for name in ("api", "tenant"):
        drive.key(name, concurrency=1)
    call = drive.send("api", "tenant")
    (run,) = drive.take()
    other = drive.send("api")
    assert drive.take() == []
    api.pause("tenant")
    assert drive.give_back(run)
    assert (drive.state(call), drive.held(call)) == (State.AVAILABLE, {})
    assert [each.call for each in drive.take()] == [other.id]


@pytest.mark.deliveries("direct", "http")  # With the broker, who gives it back dispenses for all queues.
def test_a_call_that_is_given_back_leaves_its_room_to_other_queues_where_its_own_has_no_worker(drive: Drive) -> None:
    drive.key(concurrency=1)
    call = drive.send("api")
    (run,) = drive.take()
    other = drive.beside("direct")
    waiting = other.send("api")
    assert other.take() == []
    assert drive.give_back(run)
    assert (drive.state(call), other.state(waiting)) == (State.AVAILABLE, State.AVAILABLE)
    assert [each.call for each in other.take()] == [waiting.id]


def test_a_call_that_is_given_back_twice_waits_once(drive: Drive) -> None:
    first, second = drive.send_many(2)
    (run,) = drive.take()
    assert drive.give_back(run)
    assert not drive.give_back(run)
    assert {each.call for each in drive.take(3)} == {first.id, second.id}
    assert not drive.give_back(run)


# Over HTTP a worker fetches whatever its queues hold, and gives back what it does not know.
@pytest.mark.deliveries("direct")
def test_a_call_of_a_task_that_no_worker_knows_waits_without_an_attempt_and_stops_no_other(drive: Drive) -> None:
    drive.key(concurrency=1)
    unknown = CallQueue.objects.send("unknown", queue=drive.queue, keys=["api"])
    known = drive.send("api")
    assert [run.call for run in drive.take()] == [known.id]
    assert (drive.row(unknown).attempt, drive.held(unknown)) == (0, {})
    assert drive.state(unknown) != State.ACTIVE
