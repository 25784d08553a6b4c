"""Concurrency: the cost of the calls in flight never exceeds it, and each end passes its room on."""

from typing import Any
from uuid import UUID

import pytest

from dispatcher import api
from dispatcher.states import State
from tests.drive import Drive


def test_no_more_calls_start_than_the_key_allows(drive: Drive) -> None:
    drive.key(concurrency=2)
    calls = drive.send_many(5, "api")
    runs = drive.take(5)
    assert [run.call for run in runs] == [call.id for call in calls[:2]]
    assert drive.take(5) == []
    assert drive.use() == 2


def test_each_end_lets_the_next_call_in_until_the_backlog_is_done(drive: Drive) -> None:
    drive.key(concurrency=2)
    calls = drive.send_many(7, "api")
    assert drive.drain(room=3) == [call.id for call in calls]
    assert drive.states(calls) == [State.COMPLETED] * 7
    assert drive.use() == 0


def test_calls_that_are_sent_one_by_one_fill_the_key_and_no_more(drive: Drive) -> None:
    drive.key(concurrency=2)
    calls = [drive.send("api") for _ in range(4)]
    runs = drive.take(4)
    assert [run.call for run in runs] == [call.id for call in calls[:2]]
    drive.end(runs[0])
    calls.append(drive.send("api"))
    assert [run.call for run in drive.take(4)] == [calls[2].id]


def test_time_alone_frees_nothing(drive: Drive) -> None:
    drive.key(concurrency=1)
    drive.send_many(2, "api")
    assert len(drive.take(2)) == 1
    drive.forward(50)
    assert drive.take(2) == []


def test_a_key_without_limits_lets_everything_in(drive: Drive) -> None:
    drive.key()
    drive.send_many(5, "api")
    assert len(drive.take(5)) == 5
    assert drive.use() == 5


def test_what_started_without_a_limit_counts_under_one_given_later(drive: Drive) -> None:
    drive.key()
    drive.send_many(3, "api")
    runs = drive.take(3)
    drive.limit(concurrency=3)
    (waits,) = drive.send_many(1, "api")
    assert drive.take() == []
    assert [run.call for run in drive.take(ends=runs[:1])] == [waits.id]


def test_a_call_in_flight_holds_its_cost_of_each_key_and_one_slot_without_keys(drive: Drive) -> None:
    drive.key("api", concurrency=3)
    drive.key("tenant")
    with_keys, without = drive.send(costs={"api": 3, "tenant": 1}), drive.send()
    assert len(drive.take(2)) == 2
    assert drive.held(with_keys) == {"api": 3, "tenant": 1}
    assert drive.held(without) == {None: 1}


# Limits that change


@pytest.mark.parametrize("change", ["lower", "block", "pause", "pause the queue"])
def test_an_end_lets_nothing_in_where_a_limit_was_changed_meanwhile(drive: Drive, change: str) -> None:
    drive.key(concurrency=2)
    drive.key(f"queue:{drive.queue}")
    drive.send_many(4, "api")
    runs = drive.take(2)
    match change:
        case "lower":
            drive.limit(concurrency=1)
        case "block":
            api.block("api", 60)
        case "pause":
            api.pause("api")
        case _:
            api.pause(f"queue:{drive.queue}")
    assert drive.take(2, ends=runs[:1]) == []
    assert drive.use() == 1


def test_an_end_lets_nothing_in_where_another_key_was_lowered_by_one_meanwhile(drive: Drive) -> None:
    drive.key("api", concurrency=1)
    drive.key("other", concurrency=2)
    drive.send_many(2, "api", "other")
    drive.send("other")
    runs = drive.take(3)
    assert (drive.use("api"), drive.use("other")) == (1, 2)
    drive.limit("other", concurrency=1)
    assert drive.take(ends=[run for run in runs if "api" in drive.held(run)]) == []
    assert drive.use("other") == 1


def test_a_rate_that_is_given_meanwhile_counts_the_next_start(drive: Drive) -> None:
    drive.key(concurrency=1)
    drive.send_many(3, "api")
    first = drive.take()
    drive.limit(concurrency=1, rate=(1, 3600))
    second = drive.take(ends=first)
    assert len(second) == 1
    assert drive.take(ends=second) == []


@pytest.mark.ojs
def test_a_limit_is_shared_by_the_calls_of_all_deliveries(drive: Drive) -> None:
    drive.key(concurrency=2)
    others = [drive.beside(name) for name in ("direct", "broker", "http")]
    for each in [drive, *others]:
        each.send_many(2, "api")
    started = [run for each in [drive, *others] for run in each.take(2)]
    assert len(started) == drive.use() == 2


# Where the room goes


def test_an_end_lets_as_many_lanes_in_as_it_has_room_for(drive: Drive) -> None:
    drive.key(concurrency=2)
    tenants = [drive.key(f"tenant:{number}").name for number in range(5)]
    drive.send_many(2, "api")
    runs = drive.take(2)
    waiting = [drive.send("api", tenant) for tenant in tenants]
    assert drive.take(5) == []
    assert len(drive.take(5, ends=runs[:1])) == 1
    assert len(drive.take(5, ends=runs[1:])) == 1
    assert drive.states(waiting).count(State.ACTIVE) == 2


def test_room_that_a_worker_without_room_gives_back_goes_to_another(drive: Drive) -> None:
    drive.key(concurrency=1)
    _, second = drive.send_many(2, "api")
    (run,) = drive.take(2)
    drive.end(run)
    assert [each.call for each in drive.take(1, worker="two")] == [second.id]


@pytest.mark.parametrize("other", [None, "direct", "broker", "http"])
def test_room_that_the_first_lanes_can_not_use_goes_to_the_next_one(drive: Drive, other: str | None) -> None:
    drive.key("shared", concurrency=1)
    drive.key("full", concurrency=1)
    drive.send("shared")
    (holder,) = drive.take()
    for number in range(5):
        drive.key(f"tenant:{number}")
        drive.send("shared", "full", f"tenant:{number}", priority=1)
    beside = drive if other is None else drive.beside(other)
    last = beside.send("shared", priority=-1)
    assert drive.take() == beside.take() == []
    # Only now another key stops those that come first.
    drive.send("full", priority=9)
    assert len(drive.take()) == 1
    started = [*drive.take(ends=[holder]), *beside.take()]
    assert [run.call for run in started] == [last.id]


@pytest.mark.parametrize("other", ["direct", "broker", "http"])
def test_room_that_an_end_gives_back_is_found_by_a_worker_of_another_queue(drive: Drive, other: str) -> None:
    drive.key(concurrency=1)
    drive.send("api")
    (run,) = drive.take()
    beside = drive.beside(other)
    waits = beside.send("api")
    assert beside.take() == []
    assert drive.take(ends=[run]) == []
    assert [each.call for each in beside.take()] == [waits.id]


def test_a_limit_holds_where_events_are_kept(drive: Drive, settings: Any) -> None:
    settings.DISPATCHER = {"event_retention": 3600}
    drive.key(concurrency=2)
    calls = drive.send_many(7, "api")
    runs, started = drive.take(7), list[UUID]()
    while runs:
        assert drive.use() <= 2
        started += [run.call for run in runs]
        runs = drive.take(7, ends=runs)
    assert started == [call.id for call in calls]
