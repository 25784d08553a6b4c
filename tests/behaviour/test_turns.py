"""Turns: lanes of one priority that wait for one key take turns, whatever their queues and deliveries.

None is passed over more than once a round, as long as a worker of it is free: one that took and started nothing.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any
from uuid import UUID

import pytest

from dispatcher import api
from dispatcher.states import State
from tests.drive import Drive, Run

MOMENT = 0.01
"""Between trips: lanes are served least recently first."""


deliveries = pytest.mark.parametrize("other", ["direct", "broker", "http"])


@pytest.fixture
def beside(drive: Drive, other: str) -> Drive:
    """Return a queue of another delivery."""
    return drive.beside(other)


def serve(*drives: Drive, rounds: int) -> list[str]:
    """Let one process of each queue run its calls, which end one after the other; return the queues of the starts."""
    running: dict[str, Sequence[Run]] = {drive.queue: drive.take() for drive in drives}
    order = [queue for queue, runs in running.items() for _ in runs]
    for _ in range(rounds):
        for drive in drives:
            drive.clock.forward(MOMENT)
            running[drive.queue] = drive.take(ends=running[drive.queue])
            order += [drive.queue] * len(running[drive.queue])
    return order


def longest(order: Sequence[str]) -> int:
    """Return how often the same queue had its turn one after the other at the most."""
    return max(len(list(group)) for _, group in groupby(order))


def drain(drive: Drive, owner: Mapping[UUID, str], room: int = 1) -> list[str]:
    """Take and end calls until none starts; return the owners of the starts."""
    order: list[str] = []
    runs = drive.take(room)
    while runs:
        order += [owner[run.call] for run in runs]
        drive.clock.forward(MOMENT)
        runs = drive.take(room, ends=runs)
    return order


# Lanes of one queue


def test_lanes_of_one_key_take_turns(drive: Drive) -> None:
    drive.key(concurrency=1)
    counts = {drive.key(name).name: count for name, count in (("acme", 9), ("bolt", 3))}
    owner = {call.id: name for name, count in counts.items() for call in drive.send_many(count, "api", name)}
    order = drain(drive, owner)
    assert order[:7].count("bolt") == 3
    assert longest(order[:6]) == 1
    assert len(order) == 12


def test_lanes_that_share_no_key_take_turns_with_one_process(drive: Drive) -> None:
    names = [drive.key(name, concurrency=1).name for name in "abc"]
    owner = {call.id: name for name in names for call in drive.send_many(3, name)}
    owner |= {call.id: "without keys" for call in drive.send_many(3)}
    order = drain(drive, owner)
    if drive.delivery != "broker":  # Its calls without limits are all on their way.
        assert sorted(order[:4]) == sorted(order[4:8]) == sorted(order[8:]) == [*names, "without keys"]
    assert len(order) == 12


def test_a_lane_that_comes_late_is_served_within_a_round(drive: Drive) -> None:
    drive.key(concurrency=1)
    for name in "abc":
        drive.key(name)
    for name in "ab":
        drive.send_many(9, "api", name)
    runs = drive.take()
    for _ in range(6):
        drive.clock.forward(MOMENT)
        runs = drive.take(ends=runs)
    late = drive.send("api", "c")
    for _ in range(3):
        drive.clock.forward(MOMENT)
        runs = drive.take(ends=runs)
    assert drive.row(late).attempt == 1


def test_a_lane_that_another_key_stops_keeps_its_place_and_delays_no_other(drive: Drive) -> None:
    drive.key("api", concurrency=1)
    drive.key("full", concurrency=0)
    drive.key("tenant")
    stopped = drive.send("api", "full")
    others = drive.send_many(4, "api", "tenant")
    runs = drive.take()
    for other in others[:2]:
        assert [run.call for run in runs] == [other.id]
        drive.clock.forward(MOMENT)
        runs = drive.take(ends=runs)
    drive.limit("full", concurrency=1)
    assert [run.call for run in drive.take(ends=runs)] == [stopped.id]


def test_many_lanes_of_one_key_are_each_served_once_a_round(drive: Drive) -> None:
    drive.key(concurrency=4)
    tenants = [drive.key(f"tenant:{number}").name for number in range(30)]
    owner = {call.id: tenant for tenant in tenants for call in drive.send_many(2, "api", tenant)}
    order = drain(drive, owner, room=4)
    assert len({*order[:30]}) >= 28, "where a send starts calls, the first lanes had two before the others came"
    assert sorted(order) == sorted(tenants * 2)


def test_lanes_are_served_whatever_their_number_and_however_many_a_worker_takes_at_once(drive: Drive) -> None:
    tenants = [drive.key(f"tenant:{number}", concurrency=1).name for number in range(40)]
    calls = [drive.send(tenant) for tenant in tenants]
    assert {run.call for _ in range(3) for run in drive.take(16)} == {call.id for call in calls}


def test_lanes_that_wait_for_different_keys_of_a_call_are_judged_together(drive: Drive) -> None:
    for name in ("api", "tenant"):
        drive.key(name, concurrency=1)
    drive.send_many(2, "api", "tenant")
    runs = drive.take()
    other = drive.send("tenant")
    drive.clock.forward(MOMENT)
    assert drive.take() == []
    assert [run.call for run in drive.take(ends=runs)] == [other.id]
    assert (drive.use("api"), drive.use("tenant")) == (0, 1)


@pytest.mark.deliveries("direct")  # A worker of the broker's does not choose, one over HTTP names an order.
def test_queues_of_one_worker_take_turns_on_a_key(drive: Drive) -> None:
    other = drive.beside("direct")
    drive.key(concurrency=1)
    owner = {call.id: each.queue for each in (drive, other) for call in each.send_many(3, "api")}
    queues = [drive.queue, other.queue]
    order, runs = [], drive.take(queues=queues)
    while runs:
        order += [owner[run.call] for run in runs]
        drive.clock.forward(MOMENT)
        runs = drive.take(ends=runs, queues=queues)
    assert (len(order), longest(order)) == (6, 1)


# However few lanes and calls one statement looks at


def test_a_backlog_larger_than_a_batch_starts_to_its_end(drive: Drive, settings: Any) -> None:
    settings.DISPATCHER = {"batch": 2}
    calls = drive.send_many(7)
    assert [run.call for run in drive.take(7)] == [call.id for call in calls]


def test_all_lanes_of_keys_that_open_together_start(drive: Drive, settings: Any) -> None:
    settings.DISPATCHER = {"batch": 2}
    names = [(drive.key(name, concurrency=0).name, drive.key(f"{name}:{n}").name) for name in "abc" for n in range(5)]
    calls = [drive.send(*pair) for pair in names]
    assert drive.take(15) == []
    for name in "abc":
        drive.limit(name)
    drive.tick()
    assert {run.call for run in drive.take(15)} == {call.id for call in calls}


def test_what_one_statement_leaves_goes_on_by_ends_alone(drive: Drive, settings: Any) -> None:
    settings.DISPATCHER = {"batch": 2}
    drive.key("api", concurrency=0)
    calls = [drive.send("api", drive.key(f"tenant:{number}").name) for number in range(20)]
    assert drive.take() == []
    drive.limit("api", concurrency=3)
    assert {*drive.drain(room=3)} == {call.id for call in calls}


def test_lanes_of_a_higher_priority_go_first_however_many_there_are(drive: Drive, settings: Any) -> None:
    settings.DISPATCHER = {"batch": 2}
    drive.key("api", concurrency=3)
    api.pause("api")
    calls = [drive.send("api", drive.key(f"tenant:{number}").name, priority=number) for number in range(7)]
    api.resume("api")
    assert {run.call for run in drive.take(7)} == {call.id for call in calls[4:]}


# Queues that share a key


@deliveries
def test_two_queues_that_share_a_key_take_turns(drive: Drive, beside: Drive) -> None:
    drive.key(concurrency=1)
    for each in (drive, beside):
        each.send_many(20, "api")
    order = serve(drive, beside, rounds=12)
    assert longest(order) == 1
    assert len(order) >= 8


@deliveries
def test_a_few_calls_of_a_queue_do_not_wait_for_the_flood_of_another(drive: Drive, beside: Drive) -> None:
    drive.key(concurrency=2)
    # The flood is that of a delivery whose own ends go on with it.
    flood, few = (beside, drive) if beside.delivery == "broker" else (drive, beside)
    flood.send_many(60, "api")
    runs = flood.take(2)
    calls = few.send_many(3, "api")
    waits: list[Run] = []
    for _ in range(8):
        flood.clock.forward(MOMENT)
        runs = flood.take(2, ends=runs)
        waits = few.take(1, ends=waits)
    assert [few.row(call).attempt for call in calls] == [1, 1, 1]


@pytest.mark.deliveries("direct")
def test_a_process_whose_trip_dispatches_the_call_of_another_queue_is_idle_at_its_own_turn(drive: Drive) -> None:
    drive.key(concurrency=1)
    beside = drive.beside("broker")
    for each in (beside, drive):
        each.send_many(4, "api")
    order, mine = [], drive.take()
    for _ in range(3):
        for run in beside.take():
            order.append(beside.queue)
            drive.clock.forward(MOMENT)
            beside.end(run)
        mine = drive.take()
        order += [drive.queue] * len(mine)
        drive.clock.forward(MOMENT)
        assert drive.take(ends=mine) == [], "the other queue has its turn"
    assert order == [beside.queue, drive.queue] * 3


@pytest.mark.deliveries("direct", "http")
def test_a_queue_without_a_free_worker_holds_up_no_other(drive: Drive) -> None:
    drive.key(concurrency=1)
    beside = drive.beside("direct")
    waits = beside.send("api")
    calls = drive.send_many(6, "api")
    assert drive.drain() == [call.id for call in calls]
    assert [run.call for run in beside.take()] == [waits.id]


def test_a_lane_keeps_its_turn_where_a_tick_finds_room_that_none_takes(drive: Drive) -> None:
    drive.key("api", rate=(1, 60))
    drive.key("tenant")
    owner = {call.id: "plain" for call in drive.send_many(4, "api")}
    owner |= {call.id: "tenant" for call in drive.send_many(4, "api", "tenant")}
    order = []
    for _ in range(6):
        (run,) = drive.take()
        order.append(owner[run.call])
        drive.end(run)
        drive.take()
        drive.forward(120)
    assert longest(order) == 1


@pytest.mark.deliveries("direct")  # A worker of the broker's or over HTTP holds nothing that it did not ask for.
def test_a_queue_whose_worker_is_busy_at_each_end_is_not_passed_over_for_ever(drive: Drive) -> None:
    drive.key("api", concurrency=1)
    drive.key("other", concurrency=1)
    beside = drive.beside("direct")
    beside.send_many(30, "other")
    shared = beside.send("api")
    drive.send_many(30, "api")
    mine, theirs = drive.take(), beside.take()
    for _ in range(10):
        drive.clock.forward(MOMENT)
        # Each time this queue's own worker is there when its call ends, and the other one is busy.
        mine = drive.take(ends=mine)
        theirs = beside.take(ends=theirs)
    assert drive.state(shared) != State.AVAILABLE


@pytest.mark.deliveries("direct")
def test_room_is_kept_once_for_all_lanes_of_a_worker_that_is_busy(drive: Drive) -> None:
    drive.key("api", concurrency=1)
    beside = drive.beside("direct")
    api.pause("api")
    tenants = [drive.key(f"tenant:{number}").name for number in range(5)]
    waits = [beside.send("api", tenant) for tenant in tenants]
    drive.send_many(40, "api")
    assert [drive.take(), beside.take(5)] == [[], []]
    beside.send()
    (busy,) = beside.take()
    api.resume("api")
    unused, mine = 0.0, drive.take()
    for _ in range(30):
        unused += 0 if mine else 0.1
        drive.clock.forward(MOMENT if mine else 0.1)
        mine = drive.take(ends=mine)
    assert 0.9 < unused < 1.3
    # As soon as its worker is free, each of them has its turn.
    beside.end(busy)
    theirs: Sequence[Run] = []
    for _ in range(20):
        drive.clock.forward(MOMENT)
        theirs = beside.take(ends=theirs)
        mine = drive.take(ends=mine)
    assert State.AVAILABLE not in [drive.state(call) for call in waits]


@pytest.mark.deliveries("direct")
def test_room_that_is_kept_for_a_busy_worker_is_used_by_its_next_trip(drive: Drive) -> None:
    for name in ("api", "other"):
        drive.key(name, concurrency=1)
    beside = drive.beside("direct")
    beside.send_many(40, "other")
    shared = beside.send_many(3, "api")
    drive.send_many(400, "api")
    mine, theirs = drive.take(), beside.take()
    for number in range(400):
        drive.clock.forward(MOMENT)
        mine = drive.take(ends=mine)
        if number % 40 == 39:  # The other worker takes 0.4 s for each of its calls, less than the room is kept for.
            theirs = beside.take(ends=theirs)
    assert [drive.state(call) for call in shared] == [State.COMPLETED] * 3
