"""The room that an end gives back goes to the next call of its lane only if every other key has room, too."""

from collections.abc import Callable

import pytest

from dispatcher import api
from dispatcher.models import CallQueue
from dispatcher.states import State
from tests import faults
from tests.drive import Drive, Run, ids

PERIOD = 10
MARGIN = 0.05
"""How much longer than its period a start counts."""


def test_the_end_of_a_call_lets_no_dearer_one_of_its_lane_in(drive: Drive) -> None:
    drive.key("api", concurrency=2)
    drive.key("tenant")
    drive.send("api", "tenant")
    (other,) = drive.take()
    _, second = drive.send_many(2, "api")
    dear = drive.send(costs={"api": 2})
    (run,) = drive.take()
    (run,) = drive.take(ends=[run])
    assert run.call == second.id
    assert drive.take(ends=[run]) == []
    (run,) = drive.take(ends=[other])
    assert (run.call, drive.held(run)) == (dear.id, {"api": 2})


CHANGES: dict[str, Callable[[Drive], object]] = {
    "lower": lambda drive: drive.limit("tenant", concurrency=1),
    "override": lambda drive: drive.override("tenant", seconds=60, concurrency=1),
    "pause": lambda _: api.pause("tenant"),
    "block": lambda _: api.block("tenant", 60),
}


def running(drive: Drive, change: str) -> tuple[Run, CallQueue]:
    """Return a run, and the call behind it that this change of its other key stops."""
    drive.key("api", concurrency=1)
    drive.key("tenant", concurrency=2)
    _, second = drive.send_many(2, "api", "tenant")
    drive.send("tenant")
    run, _ = drive.take(3)
    CHANGES[change](drive)
    return run, second


@pytest.mark.parametrize("change", CHANGES)
def test_the_end_of_a_call_lets_none_in_that_another_key_stops_since_it_changed(drive: Drive, change: str) -> None:
    run, second = running(drive, change)
    assert drive.take(ends=[run]) == []
    drive.limit("tenant")
    api.end_override("tenant")
    api.resume("tenant")
    assert [each.call for each in drive.take()] == [second.id]


@pytest.mark.parametrize("limit", ["rate", "throttle"])
@pytest.mark.parametrize("runs_for", [0, PERIOD - 1, PERIOD + MARGIN / 2])
def test_the_end_of_a_call_lets_none_in_before_its_time(drive: Drive, limit: str, runs_for: float) -> None:
    drive.key("api", concurrency=1)
    drive.key("pace", **{limit: (1, PERIOD)})
    _, second = drive.send_many(2, "api", "pace")
    (run,) = drive.take(2)
    drive.clock.forward(runs_for)
    started = drive.take(ends=[run])
    if started == []:
        drive.forward(PERIOD + MARGIN - runs_for)
        started = drive.take()
    assert [each.call for each in started] == [second.id]
    assert (started[0].start_at - run.start_at).total_seconds() >= PERIOD + (MARGIN if limit == "rate" else 0)


def test_the_end_of_a_call_lets_none_in_whose_window_is_full_of_calls_on_their_way(drive: Drive) -> None:
    drive.key("api", concurrency=1)
    drive.key("window", rate=(2, PERIOD))
    drive.beside("broker").send("window")
    drive.send_many(2, "api", "window")
    (run,) = drive.take(2)
    assert drive.take(ends=[run]) == []


@pytest.mark.parametrize("limit", ["rate", "throttle"])
def test_a_limit_that_another_key_gets_meanwhile_counts_the_next_start(drive: Drive, limit: str) -> None:
    drive.key("api", concurrency=1)
    drive.key("pace")
    _, second, third = drive.send_many(3, "api", "pace")
    (run,) = drive.take(2)
    drive.limit("pace", **{limit: (1, PERIOD)})
    (run,) = drive.take(ends=[run])
    assert run.call == second.id
    assert drive.take(ends=[run]) == []
    drive.forward(PERIOD + MARGIN)
    assert [each.call for each in drive.take()] == [third.id]


@pytest.mark.parametrize("change", CHANGES)
def test_a_call_that_another_key_stops_since_it_changed_holds_nothing_after_an_end(drive: Drive, change: str) -> None:
    run, second = running(drive, change)
    drive.end(run)
    assert drive.held(second) == {}


def test_a_call_that_another_key_puts_off_holds_nothing_of_the_room_of_an_end(drive: Drive) -> None:
    drive.key("api", concurrency=1)
    drive.key("pace", throttle=(1, PERIOD))
    _, second = drive.send_many(2, "api", "pace")
    (run,) = drive.take(2)
    drive.end(run)
    assert drive.held(second) == {}


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


@pytest.mark.parametrize("comes_apart", [False, True])
def test_an_expired_call_does_not_follow_the_one_that_ended(drive: Drive, *, comes_apart: bool) -> None:
    drive.key(concurrency=1)
    drive.send("api")
    late, good = drive.send("api", expires_at=drive.at(5)), drive.send("api")
    (run,) = drive.take()
    # No tick has come yet that would discard it.
    drive.clock.forward(5)
    if comes_apart:
        drive.end(run)
        assert drive.held(late) == {}
    started = drive.take(ends=[] if comes_apart else [run])
    drive.tick()
    assert ids([*started, *drive.take()]) == [good.id]
    assert drive.row(late).attempt == 0


def test_a_revoked_call_that_was_given_back_does_not_follow_the_one_that_ended(drive: Drive) -> None:
    drive.key(concurrency=2)
    revoked, _, third = drive.send_many(3, "api")
    run, other = drive.take(2)
    drive.limit(concurrency=1)
    drive.revoke(run)
    drive.give_back(run)
    assert drive.take() == []
    started = drive.take(ends=[other])
    drive.tick()
    assert ids([*started, *drive.take()]) == [third.id]
    assert drive.state(revoked) == State.CANCELLED


@pytest.mark.deliveries("direct")  # What others deliver is not chosen by the tasks that a worker knows.
def test_a_call_of_a_task_that_the_worker_does_not_know_does_not_follow_the_one_that_ended(drive: Drive) -> None:
    drive.key(concurrency=1)
    drive.send_many(2, "api")
    unknown = CallQueue.objects.send("unknown", queue=drive.queue, keys=["api"])
    good = drive.send("api")
    started = drive.take(ends=drive.take(ends=drive.take()))
    drive.tick()
    assert ids([*started, *drive.take()]) == [good.id]
    assert drive.row(unknown).attempt == 0
