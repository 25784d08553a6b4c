"""A user's transaction that keeps rows locked stops the calls that need them, for as long as it does, and no others."""

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

from dispatcher import api
from dispatcher.errors import RateLimited
from dispatcher.models import CallQueue, Share
from dispatcher.states import State
from tests import faults
from tests.drive import Drive, Run, ids
from tests.faults import locked, promptly
from tests.races.lockstep import actors

pytestmark = pytest.mark.server

waiting_rows = pytest.mark.parametrize("row", ["call", "lane", "key"])
running_rows = pytest.mark.parametrize("row", ["call", "lane", "key", "slot"])


@pytest.fixture(autouse=True)
def _keys(drive: Drive, settings: Any) -> Iterator[None]:
    settings.DISPATCHER = {"run_lease": 60, "visibility": 60}
    for name in ("locked", "other"):
        drive.key(name, concurrency=5)
    with faults.one_connection():
        yield


def of(row: str, call: CallQueue | Run) -> CallQueue | Run | str:
    return "locked" if row == "key" else call


def starts_within_two_ticks(drive: Drive, call: CallQueue) -> bool:
    """Return whether a worker that looks after each of two ticks starts a call."""
    for _ in range(2):
        drive.forward(1)
        if call.id in [run.call for run in drive.take(9)]:
            return True
    return False


# While nothing has started


@waiting_rows
def test_a_locked_row_of_a_call_that_waits_stops_no_other_key(drive: Drive, row: str) -> None:
    """A waiting call is behind a full key, so that at the broker, too, it is about to be started."""
    drive.limit("locked", concurrency=0)
    stopped = drive.send("locked")
    with locked(row, of(row, stopped)):
        other = promptly(drive.send, "other")
        assert [run.call for run in promptly(drive.take, 5)] == [other.id]
        promptly(drive.tick)
        assert promptly(drive.take, 5) == []
    drive.limit("locked", concurrency=5)
    assert starts_within_two_ticks(drive, stopped)


def test_locked_shares_stop_neither_their_key_nor_another_one(drive: Drive) -> None:
    drive.key("fair", concurrency=1, fair_by="tenant:*")
    calls = []
    for tenant in ("tenant:a", "tenant:b"):
        drive.key(tenant)
        calls += drive.send_many(2, "fair", tenant)
    runs = drive.take(5)
    assert Share.objects.exists()
    with locked("shares", "fair"):
        calls.append(promptly(drive.send, "other"))
        for _ in calls:
            runs += promptly(drive.take, 5)
            promptly(drive.tick)
            assert promptly(drive.end, runs.pop(0))
        promptly(drive.recover)
    assert [call for call in calls if drive.state(call) != State.COMPLETED] == []


@waiting_rows
def test_room_that_comes_while_a_row_is_locked_is_used_within_two_ticks_of_its_end(drive: Drive, row: str) -> None:
    drive.key("full", concurrency=1)
    drive.send("full")
    (run,) = drive.take()
    stopped, other = drive.send("full", "locked"), drive.send("full", "other")
    with locked(row, of(row, stopped)):
        assert promptly(drive.end, run)
        started = [each.call for each in promptly(drive.take, 5)]
        promptly(drive.tick)
        started += [each.call for each in promptly(drive.take, 5)]
        assert started == [other.id]
    drive.limit("full", concurrency=2)
    assert starts_within_two_ticks(drive, stopped)


@pytest.mark.deliveries("direct", "http")  # With the broker it takes a tick, which looks for sleeping lanes, too.
def test_a_call_whose_sleeping_lane_a_trip_has_locked_starts_as_soon_as_it_has_not(drive: Drive) -> None:
    drive.send("locked")
    (before,) = drive.drain()
    with locked("place", drive.row(before)):
        call = promptly(drive.send_and_die, "locked")
        assert promptly(drive.take) == []
    drive.clock.forward(0.1)
    assert ids(drive.take()) == [call.id]


@pytest.mark.deliveries("direct", "http")  # With the broker a lane is ready only while its queue is full.
def test_a_ready_lane_that_another_trip_serves_is_left_to_it(drive: Drive) -> None:
    calls = drive.send_many(3, "locked")
    (first,) = drive.take()
    with locked("place", first):
        other = promptly(drive.send, "other")
        assert ids(promptly(drive.take, 5)) == [other.id]
    assert [first.call, *ids(drive.take(5))] == [call.id for call in calls]


@pytest.mark.parametrize("row", ["call", "key", "lane"])
def test_a_send_waits_for_no_row_that_a_user_has_locked(drive: Drive, row: str) -> None:
    first = drive.send("locked")
    with locked(row, of(row, first)):
        second = promptly(drive.send, "locked")
        (third,) = promptly(drive.send_many, 1, "locked")
    started = []
    for _ in range(2):
        drive.forward(1)
        started += [run.call for run in drive.take(9)]
    assert started == [first.id, second.id, third.id]


def test_lanes_of_a_locked_key_keep_no_other_lane_from_starting(drive: Drive) -> None:
    """However many they are, and of whatever priority."""
    drive.key("full", concurrency=0)
    drive.limit("locked", concurrency=50)
    for number in range(30):
        drive.key(f"tenant:{number}")
        drive.send("full", "locked", f"tenant:{number}", priority=9)
    other = drive.send("full", "other")
    with locked("key", "locked"):
        promptly(drive.limit, "full", concurrency=50)
        promptly(drive.tick)
        assert [run.call for run in promptly(drive.take, 40)] == [other.id]
    started = []
    for _ in range(2):
        drive.forward(1)
        started += drive.take(40)
    assert len(started) == 30


def test_what_time_opens_at_a_locked_key_waits_and_at_others_starts(drive: Drive) -> None:
    calls = {}
    for name in ("locked", "other"):
        drive.override(name, concurrency=0, seconds=10)
        calls[name] = drive.send(name)
        assert drive.take() == []
    drive.clock.forward(11)
    with locked("key", "locked"):
        promptly(drive.tick)
        assert [run.call for run in promptly(drive.take, 5)] == [calls["other"].id]
    assert starts_within_two_ticks(drive, calls["locked"])


def test_a_throttled_call_whose_key_is_locked_waits_without_an_attempt(drive: Drive) -> None:
    drive.key("paced", throttle=(100, 1))
    call, other = drive.send("paced"), drive.send("other")
    with locked("key", "paced"):
        assert [run.call for run in promptly(drive.take, 5)] == [other.id]
        assert (drive.row(call).attempt, drive.row(call).errors) == (0, [])
    assert starts_within_two_ticks(drive, call)


def test_with_beat_stopped_the_next_end_finds_what_a_locked_key_has_left(drive: Drive) -> None:
    drive.limit("locked", concurrency=1)
    drive.send("locked")
    drive.send("other")
    run, elsewhere = drive.take(2)
    waiting = drive.send("locked")
    assert drive.take() == []
    with locked("key", "locked"):
        assert promptly(drive.end, run)
        assert promptly(drive.take) == []
    # It is looked at again soon, and not at once.
    drive.clock.forward(0.02)
    assert [each.call for each in drive.take(ends=[elsewhere])] == [waiting.id]


def test_a_call_whose_time_comes_while_another_is_locked_is_started(drive: Drive) -> None:
    at = drive.clock.now.replace(minute=5)
    stopped, other = drive.send("locked", scheduled_at=at), drive.send("locked", scheduled_at=at)
    with locked("call", stopped):
        drive.clock.forward(301)
        promptly(drive.tick)
        assert [run.call for run in promptly(drive.take, 5)] == [other.id]
    assert starts_within_two_ticks(drive, stopped)


MOVES: dict[str, Callable[[list[UUID]], Any]] = {"retry": api.retry, "run now": api.run_now, "cancel": api.cancel}


@pytest.mark.parametrize("verb", MOVES)
def test_what_a_person_does_in_a_transaction_that_stays_open_stops_no_other_call(drive: Drive, verb: str) -> None:
    at = drive.clock.now.replace(minute=5)
    moved, scheduled = drive.send("locked", scheduled_at=at), drive.send("locked", scheduled_at=at)
    if verb == "retry":
        api.cancel([moved.id])
    with actors(1) as (person,):
        person.open()
        person.do(MOVES[verb], [moved.id])
        drive.clock.forward(301)
        promptly(drive.tick)
        assert [run.call for run in promptly(drive.take, 5)] == [scheduled.id]
        person.commit()
    assert starts_within_two_ticks(drive, moved) == (verb != "cancel")


# While calls run


@running_rows
def test_a_locked_row_of_a_call_that_runs_stops_no_other_key_and_no_heartbeat(drive: Drive, row: str) -> None:
    drive.send("locked")
    (run,) = drive.take()
    drive.send("other")
    (other,) = drive.take()
    last = drive.send("other")
    drive.clock.forward(30)
    with locked(row, of(row, run)):
        assert promptly(drive.beat, run, other) >= 1
        assert promptly(drive.end, other)
        assert [each.call for each in promptly(drive.take, 5)] == [last.id]
        promptly(drive.tick)
    assert drive.end(run)


@pytest.mark.parametrize("row", ["call", "slot"])
def test_an_end_whose_row_is_locked_keeps_no_other_worker_and_is_recorded_when_it_can_be(
    drive: Drive, row: str
) -> None:
    drive.send("locked")
    (run,) = drive.take()
    others = drive.send_many(2, "other")
    with faults.ending_through_a_lock(drive, run, row) as ended:
        assert [each.call for each in promptly(drive.take, 1, worker="two")] == [others[0].id]
        promptly(drive.tick)
        assert [each.call for each in promptly(drive.take, 1, worker="two")] == [others[1].id]
    assert ended.result()
    assert drive.state(run) == State.COMPLETED


# One process reports an end and looks for calls in one step.
@pytest.mark.deliveries("direct")
@pytest.mark.parametrize("row", ["call", "slot"])
def test_a_worker_with_an_end_whose_row_is_locked_starts_other_calls(drive: Drive, row: str) -> None:
    drive.send("locked")
    (run,) = drive.take()
    other = drive.send("other")
    with locked(row, run):
        assert [each.call for each in promptly(drive.take, 1, ends=[run])] == [other.id]


def test_an_end_whose_key_is_locked_is_recorded_and_its_worker_goes_on_with_others(drive: Drive) -> None:
    drive.limit("locked", concurrency=1)
    *_, last = drive.send_many(4, "locked")
    (run,) = drive.take()
    for _ in range(2):
        (run,) = drive.take(ends=[run])
    other = drive.send("other")
    with locked("key", "locked"):
        assert [each.call for each in promptly(drive.take, 1, ends=[run])] == [other.id]
        assert drive.state(run) == State.COMPLETED
    assert starts_within_two_ticks(drive, last)


@pytest.mark.parametrize("row", ["call", "lane", "key", "slot"])
def test_recovery_puts_back_the_others_while_a_row_of_one_is_locked(drive: Drive, row: str) -> None:
    for name in ("locked", "other"):
        drive.send(name, retry={"max_attempts": 1})
    stopped, other = drive.take(2)
    assert drive.beat(stopped, other) == 2
    drive.clock.forward(61)
    with locked(row, of(row, stopped)):
        promptly(drive.recover)
        assert drive.state(other) == State.DISCARDED
    drive.recover()
    assert drive.state(stopped) == State.DISCARDED


def test_a_provider_s_stop_whose_key_is_locked_keeps_no_worker(drive: Drive) -> None:
    drive.send("locked")
    (run,) = drive.take()
    other = drive.send("other")
    with locked("key", "locked"):
        promptly(drive.end, run, error=RateLimited(60))
        assert drive.state(run) == State.AVAILABLE
        assert [each.call for each in promptly(drive.take, 5)] == [other.id]


def test_a_locked_block_stops_its_key_and_no_other_one(drive: Drive) -> None:
    for name in ("locked", "other"):
        drive.send(name)
    stopped, run = drive.take(2)
    last = drive.send("other")
    with locked("key", "locked"):
        promptly(drive.end, stopped, error=RateLimited(60))
    with locked("block", "locked"):
        assert promptly(drive.end, run)
        promptly(drive.tick)
        assert [each.call for each in promptly(drive.take, 5)] == [last.id]
    assert drive.take() == []
    drive.clock.forward(60)
    assert starts_within_two_ticks(drive, drive.row(stopped))


def test_what_changes_while_the_call_of_an_end_is_locked_counts_for_who_follows(drive: Drive) -> None:
    drive.key("api", concurrency=1)
    drive.key("tenant", concurrency=3)
    drive.send_many(2, "api", "tenant")
    (run,) = drive.take(2)
    other = drive.beside("broker")
    with faults.ending_through_a_lock(drive, run, "call"), drive.clock.running():
        other.send_many(2, "tenant")
        assert drive.use("tenant") == 3
        drive.limit("tenant", concurrency=2)
    assert drive.take() == []
