"""Limits that change: they hold from then on, for who waits and who comes, and interrupt nothing that runs."""

from collections.abc import Callable

import pytest
from django.db import transaction

from dispatcher import api
from dispatcher.states import State
from tests.drive import Drive, ids

Change = Callable[[Drive], object]


def limit(drive: Drive) -> None:
    drive.limit(concurrency=3)


def take_away(drive: Drive) -> None:
    drive.limit()


def override(drive: Drive) -> None:
    drive.override(seconds=60, concurrency=3)


def end_override(_: Drive) -> None:
    api.end_override("api")


def let_the_override_run_out(drive: Drive) -> None:
    drive.forward(60)


def low(drive: Drive, raise_by: Change) -> None:
    """Make a key of concurrency 1, by an override where that is what ends."""
    ends = raise_by in {end_override, let_the_override_run_out}
    drive.key(concurrency=3 if ends else 1)
    if ends:
        drive.override(seconds=60, concurrency=1)


@pytest.mark.parametrize("raise_by", [limit, take_away, override, end_override, let_the_override_run_out])
@pytest.mark.parametrize("is_closed", [False, True])
def test_limits_that_are_raised_let_in_those_who_wait(drive: Drive, raise_by: Change, *, is_closed: bool) -> None:
    """They wait at a key that is full, or at one that lets nothing in."""
    low(drive, raise_by)
    calls = drive.send_many(3, "api")
    started = drive.take(3)
    assert len(started) == 1
    if is_closed:
        drive.end(started.pop())
        calls.pop(0)
        if raise_by in {end_override, let_the_override_run_out}:
            drive.override(seconds=60, concurrency=0)
        else:
            drive.limit(concurrency=0)
        assert drive.take(3) == []
    raise_by(drive)
    started += drive.take(3)
    assert ids(started) == ids(calls)


@pytest.mark.parametrize("raise_by", [limit, override])
def test_limits_hold_from_the_commit_of_their_transaction_on(drive: Drive, raise_by: Change) -> None:
    drive.key(concurrency=0)
    calls = drive.send_many(3, "api")
    assert drive.take(3) == []
    with transaction.atomic():
        raise_by(drive)
        assert drive.states(calls) == [State.AVAILABLE] * 3
    assert ids(drive.take(3)) == ids(calls)


def test_an_override_that_runs_out_is_gone_and_the_key_s_own_limits_hold(drive: Drive) -> None:
    drive.key(concurrency=1, rate=(5, 1))
    drive.override(seconds=60, concurrency=3)
    calls = drive.send_many(5, "api")
    started = drive.take(5)
    assert ids(started) == ids(calls[:3])
    drive.forward(60)
    drive.end(started[0])
    drive.end(started[1])
    assert drive.take(5) == []
    drive.end(started[2])
    assert ids(drive.take(5)) == [calls[3].id]
    key = drive.key()
    assert (key.override_until, key.override_concurrency, key.concurrency) == (None, None, 1)


@pytest.mark.parametrize("lower_by", [limit, override])
def test_limits_that_are_lowered_interrupt_nothing_and_hold_the_next_back(drive: Drive, lower_by: Change) -> None:
    drive.key(concurrency=5)
    calls = drive.send_many(7, "api")
    runs = drive.take(5)
    lower_by(drive)
    assert drive.states(runs) == [State.ACTIVE] * 5
    for run in runs[:2]:
        assert drive.end(run)
        assert drive.take(5) == []
    drive.end(runs[2])
    assert ids(drive.take(5)) == [calls[5].id]
    assert drive.use() == 3


def test_a_call_that_was_admitted_before_a_limit_was_lowered_may_start(drive: Drive) -> None:
    """Its slot is held already; a call that was not admitted waits for the lower limit."""
    drive.key(concurrency=2)
    calls = [drive.send("api"), drive.send("api")]
    drive.limit(concurrency=1)
    assert ids(drive.take(2)) == ids(calls[: 2 if drive.delivery == "broker" else 1])


def test_a_limit_replaces_all_and_an_override_only_those_that_it_names(drive: Drive) -> None:
    drive.key(concurrency=2, rate=(1, 60))
    calls = drive.send_many(3, "api")
    started = drive.take(3)
    drive.override(seconds=600, concurrency=5)
    assert (len(started), drive.take(3)) == (1, [])
    drive.override(seconds=600, rate=None)
    started += drive.take(3)
    assert len(started) == 2
    drive.limit(rate=(9, 1))
    api.end_override("api")
    started += drive.take(3)
    assert ids(started) == ids(calls)


def test_a_window_that_is_made_narrower_counts_the_starts_before(drive: Drive) -> None:
    drive.key(rate=(4, 60))
    drive.send_many(6, "api")
    drive.drain(room=3)
    drive.limit(rate=(5, 120))
    assert len(drive.drain()) == 1
    drive.forward(60.1)
    assert drive.drain() == []
    drive.forward(60)
    assert len(drive.drain()) == 1


def test_ends_let_the_next_ones_in_whatever_time_the_former_limits_had_to_wait_for(drive: Drive) -> None:
    drive.key(rate=(1, 3600))
    calls = drive.send_many(4, "api")
    assert drive.drain() == ids(calls[:1])
    drive.limit(concurrency=1)
    assert drive.drain() == ids(calls[1:])


def test_a_throttle_that_is_given_later_spaces_from_the_last_start_on(drive: Drive) -> None:
    drive.key(throttle=(1, 1))
    calls = drive.send_many(3, "api")
    starts = [run.start_at for run in drive.take(3)]
    drive.limit(throttle=(1, 10))
    drive.forward(9)
    assert drive.take(3) == []
    for seconds in (1, 10):
        drive.forward(seconds)
        starts += [run.start_at for run in drive.take(3)]
    assert [(at - starts[0]).total_seconds() for at in starts] == [0, 10, 20]
    assert len(starts) == len(calls)


def test_a_new_limit_of_one_key_does_not_let_a_call_past_another(drive: Drive) -> None:
    drive.key(concurrency=0)
    drive.key("other", concurrency=0)
    call = drive.send("api", "other")
    assert drive.take() == []
    drive.limit(concurrency=1)
    assert (drive.take(), drive.held(call)) == ([], {})
    drive.limit("other", concurrency=1)
    assert ids(drive.take()) == [call.id]


def test_the_status_has_the_limits_in_force(drive: Drive) -> None:
    drive.key(concurrency=1)
    drive.override(seconds=10, concurrency=3)
    drive.clock.forward(9.9)
    assert drive.status().policy.concurrency == 3
    drive.clock.forward(0.1)
    assert drive.status().policy.concurrency == 1


def test_an_override_ends_at_its_time_and_not_at_the_next_tick(drive: Drive) -> None:
    drive.key(concurrency=1)
    drive.override(seconds=10, concurrency=3)
    drive.clock.forward(10)
    drive.send_many(3, "api")
    assert len(drive.take(3)) == 1


def test_the_throttle_of_an_override_ends_with_it_and_not_at_the_next_tick(drive: Drive) -> None:
    drive.key()
    drive.key("tenant")
    drive.override(seconds=5, throttle=(1, 10))
    drive.send("api")
    assert len(drive.take()) == 1
    drive.clock.forward(5)
    call = drive.send("api", "tenant")
    assert ids(drive.take()) == [call.id]
