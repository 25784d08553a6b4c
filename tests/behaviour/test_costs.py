"""Several keys of a call, each with its cost: all must have room at once, and each is charged its own cost."""

from datetime import timedelta
from typing import Any

import pytest

from dispatcher import api
from dispatcher.models import CallQueue
from dispatcher.states import State
from tests.drive import Drive


def test_all_keys_of_a_call_must_have_room_at_once(drive: Drive) -> None:
    drive.key("api", concurrency=3)
    drive.key("tenant", concurrency=1)
    first, second = drive.send_many(2, "api", "tenant")
    (run,) = drive.take(2)
    assert run.call == first.id
    assert (drive.use("api"), drive.use("tenant")) == (1, 1)
    assert [each.call for each in drive.take(2, ends=[run])] == [second.id]


def test_a_call_that_one_key_stops_takes_nothing_of_the_others(drive: Drive) -> None:
    drive.key("api", concurrency=1)
    drive.key("tenant", concurrency=0)
    stopped, free = drive.send("api", "tenant"), drive.send("api")
    assert [run.call for run in drive.take(2)] == [free.id]
    assert drive.held(stopped) == {}
    assert (drive.use("api"), drive.use("tenant")) == (1, 0)


def test_each_key_is_charged_its_own_cost(drive: Drive) -> None:
    drive.key("api", concurrency=5)
    drive.key("tokens", concurrency=5)
    calls = [drive.send(costs=costs) for costs in ({"api": 3, "tokens": 2}, {"api": 2, "tokens": 3})]
    calls += drive.send_many(1, costs={"api": 3, "tokens": 2})
    runs = drive.take(3)
    assert [run.call for run in runs] == [call.id for call in calls[:2]]
    assert [drive.held(run) for run in runs] == [{"api": 3, "tokens": 2}, {"api": 2, "tokens": 3}]
    assert (drive.use("api"), drive.use("tokens")) == (5, 5)
    assert [run.call for run in drive.take(3, ends=runs[:1])] == [calls[2].id]
    assert drive.held(calls[2]) == {"api": 3, "tokens": 2}


def test_a_call_that_costs_more_than_1_makes_one_attempt(drive: Drive) -> None:
    drive.key()
    call = drive.send(costs={"api": 2})
    (run,) = drive.take()
    assert run.attempt == drive.row(call).attempt == 1


@pytest.mark.parametrize("scarce", ["api", "tokens"])
def test_the_cost_of_each_of_several_keys_is_counted(drive: Drive, scarce: str) -> None:
    limits = {"api": 100, "tokens": 100, scarce: 5}
    for name, limit in limits.items():
        drive.key(name, concurrency=limit)
    drive.send_many(2, costs={"api": 3, "tokens": 3})
    assert len(drive.take(2)) == 1


def test_the_end_of_a_dear_call_lets_several_cheap_ones_in(drive: Drive) -> None:
    drive.key(concurrency=3)
    drive.send(costs={"api": 3})
    cheap = drive.send_many(4, "api")
    (dear,) = drive.take(4)
    assert [run.call for run in drive.take(4, ends=[dear])] == [call.id for call in cheap[:3]]


def test_the_end_of_a_cheap_call_lets_no_dear_one_in(drive: Drive) -> None:
    drive.key(concurrency=3)
    drive.send_many(3, "api")
    dear = drive.send(costs={"api": 2})
    first, second, _ = drive.take(4)
    assert drive.take(4, ends=[first]) == []
    assert [run.call for run in drive.take(4, ends=[second])] == [dear.id]


def test_a_cheap_call_does_not_pass_a_dear_one_of_its_lane(drive: Drive) -> None:
    drive.key(concurrency=5)
    first, dear, cheap = [drive.send(costs={"api": cost}) for cost in (3, 3, 1)]
    (run,) = drive.take(3)
    assert run.call == first.id
    assert drive.states([dear, cheap]) == [State.AVAILABLE, State.AVAILABLE]
    assert [each.call for each in drive.take(3, ends=[run])] == [dear.id, cheap.id]


def test_a_dear_call_is_not_passed_for_ever_by_cheap_ones_of_another_lane(drive: Drive) -> None:
    drive.key("api", concurrency=4)
    for name in ("dear", "cheap"):
        drive.key(name)
    drive.send_many(4, "api")
    runs = drive.take(4)
    dear = drive.send(costs={"api": 3, "dear": 1})
    cheap = drive.send_many(4, "api", "cheap")
    assert drive.take(4) == drive.take(4, ends=runs[:1]) == drive.take(4, ends=runs[1:2]) == []
    assert [run.call for run in drive.take(1, ends=runs[2:3])] == [dear.id]
    assert drive.states(cheap) == [State.AVAILABLE] * 4


def test_a_cost_counts_in_the_window(drive: Drive) -> None:
    drive.key(rate=(5, 10))
    _, second = drive.send_many(2, costs={"api": 3})
    runs = drive.take(2)
    assert len(runs) == 1
    drive.end(runs[0])
    drive.forward(9)
    assert drive.take(2) == []
    drive.forward(1.1)
    assert [run.call for run in drive.take(2)] == [second.id]


def test_a_cost_takes_its_time_of_a_throttle(drive: Drive) -> None:
    drive.key(throttle=(1, 10))
    drive.send(costs={"api": 3})
    second = drive.send("api")
    assert len(drive.take(2)) == 1
    drive.forward(29)
    assert drive.take() == []
    drive.forward(1.1)
    assert [run.call for run in drive.take()] == [second.id]


# A call that is too dear just now shuts its key for as long as it waits at the head of its lane, and no longer.

SECOND = timedelta(seconds=1)
HOUR = 3600
every_limit = pytest.mark.parametrize("limits", [{"rate": (10, HOUR)}, {"concurrency": 10}], ids=str)


def shut(drive: Drive, limits: dict[str, Any], **fields: Any) -> tuple[CallQueue, list[CallQueue]]:
    """Return a call that costs 5 where only 2 are left, and cheap ones behind it in its lane."""
    drive.key("other")
    drive.key("api", **limits)
    drive.send(costs={"api": 8, "other": 1})
    assert len(drive.take()) == 1
    dear = drive.send(costs={"api": 5}, **fields)
    cheap = drive.send_many(2, "api")
    assert drive.take(3) == []
    return dear, cheap


@every_limit
def test_those_behind_a_dear_call_that_expires_go_in_the_same_tick(drive: Drive, limits: dict[str, Any]) -> None:
    dear, cheap = shut(drive, limits, expires_at=drive.clock.now + 10 * SECOND)
    drive.forward(9)
    assert drive.take(3) == []
    drive.forward(1)
    assert [run.call for run in drive.take(3)] == [call.id for call in cheap]
    assert drive.state(dear) == State.DISCARDED


@every_limit
def test_those_behind_a_dear_call_that_is_cancelled_go_at_once(drive: Drive, limits: dict[str, Any]) -> None:
    dear, cheap = shut(drive, limits)
    api.cancel([dear.id])
    assert [run.call for run in drive.take(3)] == [call.id for call in cheap]
    assert drive.state(dear) == State.CANCELLED


def test_a_call_in_another_lane_goes_when_the_dear_one_of_a_lane_has_expired(drive: Drive) -> None:
    for name in ("tenant", "other"):
        drive.key(name)
    drive.key("api", rate=(10, HOUR))
    drive.send(costs={"api": 8, "other": 1})
    drive.take()
    drive.send(costs={"api": 5}, expires_at=drive.clock.now + 10 * SECOND)
    cheap = drive.send("api", "tenant")
    assert drive.take(2) == []
    drive.forward(10)
    assert [run.call for run in drive.take(2)] == [cheap.id]


def test_a_window_without_any_room_opens_for_the_cheap_when_the_dear_call_has_expired(drive: Drive) -> None:
    for name in ("tenant", "other"):
        drive.key(name)
    drive.key("api", rate=(10, 60))
    for _ in range(2):
        drive.send(costs={"api": 5, "other": 1})
        assert len(drive.take()) == 1
        drive.forward(30)
    drive.clock.forward(-29)
    drive.send(costs={"api": 8}, expires_at=drive.clock.now + 9 * SECOND)
    cheap = drive.send("api", "tenant")
    assert drive.take(2) == []
    drive.forward(9)
    assert drive.take(2) == []
    drive.forward(20.1)
    assert [run.call for run in drive.take(2)] == [cheap.id]


def test_a_cheap_call_that_is_to_run_now_goes_before_a_dear_one(drive: Drive) -> None:
    dear, (_, cheap) = shut(drive, {"rate": (10, HOUR)})
    api.run_now([cheap.id])
    assert [run.call for run in drive.take(1)] == [cheap.id]
    assert drive.state(dear) == State.AVAILABLE


def test_a_cheap_call_whose_time_comes_goes_before_a_dear_one_that_was_sent_later(drive: Drive) -> None:
    drive.key(rate=(10, HOUR))
    drive.send(costs={"api": 8})
    drive.take()
    cheap = drive.send("api", scheduled_at=drive.clock.now + 10 * SECOND)
    dear = drive.send(costs={"api": 5})
    assert drive.take() == []
    drive.forward(10)
    assert [run.call for run in drive.take(2)] == [cheap.id]
    assert drive.state(dear) == State.AVAILABLE


def test_a_call_whose_time_comes_behind_a_dear_one_waits_for_it(drive: Drive) -> None:
    drive.key(rate=(10, HOUR))
    drive.send(costs={"api": 8})
    drive.take()
    drive.send(costs={"api": 5})
    drive.send("api", scheduled_at=drive.clock.now + 10 * SECOND)
    drive.forward(10)
    assert drive.take(2) == []
