"""A transaction of a user that keeps a key locked stops nothing that does not spend it, and loses nothing that does."""

import pytest

from dispatcher import api
from dispatcher.errors import RateLimited
from dispatcher.states import State
from tests.drive import Drive, ids
from tests.races.lockstep import eventually, holding

LOCK = "SELECT id FROM dispatcher_ratelimitkey WHERE name = 'api' FOR UPDATE"


@pytest.mark.parametrize("is_full", [False, True])
def test_calls_of_a_locked_key_wait_and_those_of_others_start(drive: Drive, *, is_full: bool) -> None:
    drive.key(concurrency=1)
    drive.key("other", concurrency=1)
    ended = []
    if is_full:
        drive.send("api")
        ended = drive.take()
    with holding(LOCK):
        locked, free = drive.send("api"), drive.send("other")
        assert ids(drive.take(2)) == [free.id]
    drive.tick()
    assert ids(drive.take(ends=ended)) == [locked.id]


def test_an_end_under_a_locked_key_lets_the_next_one_in_within_two_ticks_of_the_unlock(drive: Drive) -> None:
    drive.key(concurrency=1)
    _, behind = drive.send_many(2, "api")
    (run,) = drive.take()
    with holding(LOCK):
        assert drive.end(run)
        assert drive.take() == []
    drive.tick()
    drive.tick()
    assert ids(drive.take()) == [behind.id]


def test_a_call_is_cancelled_under_a_locked_key(drive: Drive) -> None:
    drive.key(concurrency=1)
    first, second = drive.send_many(2, "api")
    (run,) = drive.take()
    with holding(LOCK):
        assert api.cancel([first, second]) == [second.id]
    assert (drive.state(run), drive.state(second)) == (State.ACTIVE, State.CANCELLED)


def test_a_call_under_a_locked_key_that_is_stopped_waits_by_itself_and_spends_nothing(drive: Drive) -> None:
    drive.key()
    drive.send("api")
    (run,) = drive.take()
    with holding(LOCK):
        drive.end(run, error=RateLimited(30))
        row = drive.row(run)
        assert (row.state, row.attempt, drive.use()) == (State.SCHEDULED, 0, 0)
    # A thread blocks the key when the lock ends.
    assert eventually(lambda: drive.key().blocked_until) > drive.clock.now
