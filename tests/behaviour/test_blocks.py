"""Blocks: a provider that asks to stop is left alone for so long, no attempt is spent, and starts grow again after."""

from datetime import timedelta
from typing import Any

import pytest

from dispatcher import api
from dispatcher.errors import RateLimited
from dispatcher.states import State
from tests.drive import Drive, ids


def test_the_provider_s_stop_spends_no_attempt_and_the_call_is_the_next_to_start(drive: Drive, settings: Any) -> None:
    settings.DISPATCHER = {"ramp": 0}
    drive.key()
    first, behind = drive.send_many(2, "api", retry={"max_attempts": 1})
    (run,) = drive.take()
    assert drive.end(run, error=RateLimited(30))
    row = drive.row(first)
    assert (row.state, row.attempt, row.ticket, row.errors) == (State.AVAILABLE, 0, None, [])
    assert (drive.take(2), drive.use()) == ([], 0)
    drive.forward(29)
    assert drive.take(2) == []
    drive.forward(1)
    again, then = drive.take(2)
    assert (again.call, again.attempt, then.call) == (first.id, 1, behind.id)


def test_a_stop_blocks_every_key_of_its_call(drive: Drive, settings: Any) -> None:
    settings.DISPATCHER = {"ramp": 0}
    for name in ("a", "b", "c"):
        drive.key(name)
    stopped = drive.send("a", "b")
    (run,) = drive.take()
    drive.end(run, error=RateLimited(30))
    of_a, of_b, of_c = (drive.send(name) for name in ("a", "b", "c"))
    assert ids(drive.take(4)) == [of_c.id]
    drive.forward(30)
    assert sorted(ids(drive.take(4))) == ids([stopped, of_a, of_b])


@pytest.mark.parametrize("named", ["a", "other"])
def test_a_stop_that_names_a_key_blocks_that_one_alone_and_its_call_waits_too(drive: Drive, named: str) -> None:
    """Whether it is one of the call's own or not."""
    names = {"a", "b", "other"}
    for name in names:
        drive.key(name)
    stopped = drive.send("a", "b")
    (run,) = drive.take()
    drive.end(run, error=RateLimited(30, key=named))
    assert {key.name for key in map(drive.key, names) if key.blocked_until} == {named}
    beside = drive.send("b")
    assert ids(drive.take(2)) == [beside.id]
    drive.forward(30)
    assert ids(drive.take(2)) == [stopped.id]


def test_a_stop_that_names_a_key_that_does_not_exist_blocks_those_of_the_call(drive: Drive) -> None:
    drive.key()
    drive.send("api")
    (run,) = drive.take()
    drive.end(run, error=RateLimited(30, key="typo"))
    assert drive.key().blocked_until == drive.clock.now + timedelta(seconds=30)


def test_a_call_without_a_key_that_is_stopped_waits_by_itself(drive: Drive) -> None:
    stopped, other = drive.send_many(2)
    (run,) = drive.take()
    drive.end(run, error=RateLimited(30))
    assert (drive.state(stopped), drive.row(stopped).attempt) == (State.SCHEDULED, 0)
    assert ids(drive.take(2)) == [other.id]
    drive.forward(30)
    assert ids(drive.take(2)) == [stopped.id]


@pytest.mark.parametrize("named", [None, "api"])
def test_a_stop_of_a_late_attempt_blocks_nothing(drive: Drive, named: str | None) -> None:
    drive.key()
    drive.send("api")
    (late,) = drive.take()
    drive.give_back(late)
    (run,) = drive.take()
    assert not drive.end(late, error=RateLimited(30, key=named))
    assert (drive.key().blocked_until, drive.state(run)) == (None, State.ACTIVE)


@pytest.mark.parametrize("waits", [(60, 10), (10, 60)])
@pytest.mark.parametrize("is_stop", [False, True])
def test_the_longer_of_two_blocks_stands(drive: Drive, waits: tuple[int, int], *, is_stop: bool) -> None:
    drive.key(concurrency=2)
    drive.send_many(2, "api")
    for run, wait in zip(drive.take(2), waits, strict=True):
        if is_stop:
            drive.end(run, error=RateLimited(wait))
        else:
            api.block("api", wait)
    assert drive.key().blocked_until == drive.clock.now + timedelta(seconds=60)


def test_a_block_ends_by_itself_and_not_before_its_time(drive: Drive) -> None:
    drive.key()
    api.block("api", 5)
    call = drive.send("api")
    assert drive.take() == []
    drive.forward(4.999)
    assert drive.take() == []
    drive.forward(0.001)
    assert ids(drive.take()) == [call.id]


# The ramp after it


def test_after_a_block_starts_grow_from_one_on(drive: Drive, settings: Any) -> None:
    """In flight are 1, then 2, 4 and 8 at each eighth of the ramp; after it all may go."""
    settings.DISPATCHER = {"ramp": 8}
    drive.key()
    drive.send_many(40, "api")
    api.block("api", 60)
    assert drive.take(40) == []
    in_flight = []
    for seconds in (60, 0.5, 0.5, 1, 0.5, 0.5, 5):
        drive.forward(seconds)
        drive.take(40)
        in_flight.append(drive.use())
    assert in_flight == [1, 1, 2, 4, 4, 8, 40]


def test_while_starts_grow_an_end_lets_the_next_one_in_within_two_ticks(drive: Drive, settings: Any) -> None:
    settings.DISPATCHER = {"ramp": 80}
    drive.key()
    first, second, _ = drive.send_many(3, "api")
    api.block("api", 60)
    drive.take(3)
    drive.forward(60)
    (run,) = drive.take(3)
    assert run.call == first.id
    drive.end(run)
    drive.forward(1)
    drive.forward(1)
    assert ids(drive.take(3)) == [second.id]


@pytest.mark.parametrize("is_resumed", [False, True])
def test_without_a_ramp_or_after_a_resume_all_go_at_once(drive: Drive, settings: Any, *, is_resumed: bool) -> None:
    settings.DISPATCHER = {} if is_resumed else {"ramp": 0}
    drive.key()
    calls = drive.send_many(20, "api")
    api.block("api", 60)
    drive.take(20)
    drive.forward(1 if is_resumed else 60)
    if is_resumed:
        api.resume("api")
    assert ids(drive.take(20)) == ids(calls)


def test_no_more_starts_while_they_grow_than_the_key_allows(drive: Drive) -> None:
    drive.key(concurrency=2)
    drive.send_many(20, "api")
    api.block("api", 60)
    drive.take(20)
    drive.forward(67)
    drive.take(20)
    assert drive.use() == 2


def test_while_starts_grow_what_began_before_the_block_counts_and_an_end_lets_none_in(
    drive: Drive, settings: Any
) -> None:
    settings.DISPATCHER = {"ramp": 80}
    drive.key(concurrency=2)
    drive.send_many(4, "api")
    runs = drive.take(2)
    assert len(runs) == 2
    api.block("api", 60)
    drive.clock.forward(60)
    assert drive.take(ends=runs[:1]) == []


def test_while_starts_grow_calls_that_are_sent_one_by_one_count(drive: Drive, settings: Any) -> None:
    settings.DISPATCHER = {"ramp": 80}
    drive.key()
    api.block("api", 60)
    drive.clock.forward(60)
    for _ in range(2):
        drive.send("api")
    assert len(drive.take(2)) == 1
