"""Where there is room, a waiting call and a free worker, the call starts within two ticks, whatever has died."""

import random
import time
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from dispatcher.models import CallQueue, Note, RateLimitKey
from dispatcher.states import TERMINAL, State
from tests import faults
from tests.drive import Drive, Run
from tests.races.lockstep import DEADLINE, actors, at_once


def start_within_two_ticks(drive: Drive) -> list[UUID]:
    """Return what a worker starts that looks after each of two ticks."""
    started: list[Run] = []
    for _ in range(2):
        drive.forward(1)
        started += drive.take(9)
    return [run.call for run in started]


@pytest.mark.parametrize("keys", [(), ("api",), ("api", "tenant")], ids=len)
def test_the_call_of_a_sender_that_dies_with_its_commit_is_found(drive: Drive, keys: tuple[str, ...]) -> None:
    for name in keys:
        drive.key(name, concurrency=1)
    call = drive.send_and_die(*keys)
    assert start_within_two_ticks(drive) == [call.id]


def is_found_beside(drive: Drive, lanes: int) -> bool:
    """Return whether the call of a sender that dies starts alone, beside so many lanes that are parked."""
    with faults.parked_lanes(drive, lanes):
        call = drive.send_and_die()
        return start_within_two_ticks(drive) == [call.id]


def test_the_call_of_a_sender_that_dies_is_found_beside_many_lanes(drive: Drive) -> None:
    assert is_found_beside(drive, 1_500)


@pytest.mark.slow
@pytest.mark.deliveries("direct")  # To make them takes a minute.
def test_the_call_of_a_sender_that_dies_is_found_beside_100_000_lanes(drive: Drive) -> None:
    assert is_found_beside(drive, 100_000)


@pytest.mark.parametrize("limits", [{"concurrency": 3}, {"rate": (3, 60)}], ids=lambda limits: next(iter(limits)))
def test_a_call_that_is_committed_behind_a_dearer_one_that_waits_starts(drive: Drive, limits: dict[str, Any]) -> None:
    drive.key(**limits)
    drive.send(costs={"api": 2})
    (run,) = drive.take()
    with actors(1) as (sender,):
        sender.open()
        late = sender.do(drive.send_and_die, costs={"api": 1})
        drive.send(costs={"api": 2})
        assert drive.take() == [], "the lane waits for room for two"
        sender.commit()
    assert start_within_two_ticks(drive) == [late.id], "it does not wait for an end or an opening"
    drive.end(run)


@pytest.mark.deliveries("direct")
def test_room_is_found_by_another_queue_whose_lane_was_locked_when_it_came(drive: Drive) -> None:
    drive.key(concurrency=1)
    drive.send_many(2, "api")
    (run,) = drive.take()
    other = drive.beside("direct")
    waiting = other.send("api")
    assert (drive.take(), other.take()) == ([], [])
    with faults.locked("place", waiting):
        drive.end(run)
    other.forward(1)
    assert [run.call for run in other.take()] == [waiting.id]


@pytest.mark.deliveries("direct")
def test_room_is_found_that_came_while_who_had_read_the_note_of_its_key_kept_that_locked(drive: Drive) -> None:
    drive.key(concurrency=1)
    _, second = drive.send_many(2, "api")
    (run,) = drive.take()
    assert drive.take() == []
    Note.objects.create(at=drive.clock.now, key_id=RateLimitKey.objects.get(name="api").id, is_forced=False)
    with actors(1) as (other,):
        other.open()
        assert other.do(drive.another().take) == []
        drive.end(run)
        other.commit()
    drive.clock.forward(1)
    assert [run.call for run in drive.take()] == [second.id]


def test_room_that_a_worker_leaves_that_dies_with_the_commit_of_its_end_is_found(drive: Drive) -> None:
    drive.key(concurrency=1)
    drive.send("api")
    (run,) = drive.take()
    second = drive.send("api")
    assert drive.take() == []
    faults.end_and_die(run)
    assert start_within_two_ticks(drive) == [second.id]


def test_with_beat_stopped_the_next_end_finds_room_that_a_worker_left_that_died(drive: Drive) -> None:
    drive.key(concurrency=2)
    drive.send_many(2, "api")
    lost, run = drive.take(2)
    waiting = drive.send_many(2, "api")
    assert drive.take() == []
    faults.end_and_die(lost)
    assert {each.call for each in drive.take(2, ends=[run])} == {call.id for call in waiting}


def test_a_worker_that_dies_while_it_records_an_end_stops_no_other_call(drive: Drive, settings: Any) -> None:
    settings.DISPATCHER = {"run_lease": 60, "visibility": 60}
    drive.key(concurrency=1)
    drive.send("api", retry={"max_attempts": 1})
    (run,) = drive.take()
    drive.beat(run)
    second, other = drive.send("api"), drive.send()
    faults.die_while_ending(drive, run)
    assert drive.state(run) == State.ACTIVE
    (free,) = drive.take(9)
    assert free.call == other.id
    drive.end(free)
    drive.clock.forward(61)
    drive.recover()
    assert [each.call for each in drive.take(9)] == [second.id]


# Nothing ticks


@pytest.mark.deliveries("direct", "http")  # calls of the broker come with the next tick
def test_a_worker_that_was_stopped_for_a_while_finds_what_was_sent_meanwhile(drive: Drive) -> None:
    """As on a machine that sleeps: what its own clock says is no measure of what it has missed."""
    drive.send()
    assert len(drive.drain()) == 1
    call = drive.send_and_die()
    drive.clock.forward(60)
    assert [run.call for run in drive.take()] == [call.id]


def work(drive: Drive) -> None:
    """Be a worker until every call has ended."""
    mine, runs = drive.another(), list[Run]()
    deadline = time.monotonic() + DEADLINE
    while runs or CallQueue.objects.exclude(state__in=TERMINAL).exists():
        runs = mine.take(2, ends=runs)
        if not runs:
            time.sleep(0.005)
        assert time.monotonic() < deadline, "not all calls have ended"


def test_a_backlog_behind_several_keys_and_costs_drains_to_its_last_call_by_ends_alone(drive: Drive) -> None:
    dice = random.Random(1)  # noqa: S311 -- not for secrets
    drive.key("api", concurrency=4)
    drive.key("other", concurrency=3)
    for number in range(6):
        drive.key(f"tenant:{number}")
    for number in range(40):
        costs = {"api": dice.randint(1, 4), f"tenant:{number % 6}": 1}
        drive.send(costs=costs | ({"other": dice.randint(1, 3)} if number % 2 else {}))
    with drive.clock.running():
        at_once(*[partial(work, drive)] * 4)
    assert (drive.use("api"), drive.use("other")) == (0, 0)


def test_calls_that_are_sent_while_workers_come_to_rest_are_found(drive: Drive) -> None:
    for number in range(4):
        drive.key(f"tenant:{number}")

    def send(number: int) -> None:
        sender = drive.another()
        for turn in range(10):
            sender.send(f"tenant:{(number + turn) % 4}")

    with drive.clock.running():
        at_once(*[partial(send, number) for number in range(4)], *[partial(work, drive)] * 3)
        work(drive)
    assert CallQueue.objects.filter(state=State.COMPLETED).count() == 40
