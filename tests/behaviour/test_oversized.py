"""A call that costs more than the limits in force ever allow waits alone: it holds up no other call, and is reported.

It goes, in its old place, when the limits allow its cost.
"""

from collections.abc import Callable
from typing import Any

import pytest

from dispatcher import api
from dispatcher.errors import CallNeverRuns, KeyNotFound, PolicyInvalid
from dispatcher.models import CallQueue
from dispatcher.states import Reason, State
from tests.drive import Drive, ids

LIMITS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "concurrency": ({"concurrency": 10}, {"concurrency": 5}),
    "rate": ({"rate": (10, 3600)}, {"rate": (5, 3600)}),
    "throttle": ({"throttle": (1, 1)}, {"throttle": (1, "P100D")}),
}
"""Limits that allow a cost of 8, and lower ones that never do."""


def send(drive: Drive, *costs: int, **fields: Any) -> list[CallQueue]:
    return [drive.send(costs={"api": cost}, **fields) for cost in costs]


def aside() -> dict[Any, int]:
    """Return the calls that wait alone, with what they cost."""
    return dict(CallQueue.objects.filter(oversized_key__isnull=False).values_list("id", "oversized_cost"))


def waiting_alone(drive: Drive, **fields: Any) -> CallQueue:
    """Return a call of a cost of 8 that waits alone at a key of concurrency 5."""
    drive.key(concurrency=10)
    api.pause("api")
    (dear,) = send(drive, 8, **fields)
    drive.limit(concurrency=5)
    api.resume("api")
    assert drive.take() == []
    return dear


@pytest.mark.parametrize("strategy", LIMITS)
def test_it_holds_up_neither_its_lane_nor_its_key(drive: Drive, strategy: str) -> None:
    before, after = LIMITS[strategy]
    drive.key(**before)
    api.pause("api")
    dear, behind = send(drive, 8, 1)
    assert drive.limit(**after) == 1
    api.resume("api")
    assert ids(drive.take(2)) == [behind.id]
    assert (drive.state(dear), drive.held(dear), aside()) == (State.AVAILABLE, {}, {dear.id: 8})


def limit(drive: Drive) -> None:
    drive.limit(concurrency=8)


def take_away(drive: Drive) -> None:
    drive.limit()


def override(drive: Drive) -> None:
    drive.override(seconds=60, concurrency=8)


@pytest.mark.parametrize("raise_by", [limit, take_away, override])
def test_it_goes_when_the_limits_allow_its_cost(drive: Drive, raise_by: Callable[[Drive], None]) -> None:
    dear = waiting_alone(drive)
    raise_by(drive)
    assert aside() == {}
    assert ids(drive.take()) == [dear.id]
    assert drive.use() == 8


@pytest.mark.parametrize("runs_out", [False, True])
def test_one_that_an_override_never_allows_goes_when_the_override_ends(drive: Drive, *, runs_out: bool) -> None:
    drive.key(concurrency=10)
    api.pause("api")
    dear, cheap = send(drive, 8, 1)
    assert drive.override(seconds=60, concurrency=5) == 1
    api.resume("api")
    started = drive.take(2)
    assert ids(started) == [cheap.id]
    if runs_out:
        drive.forward(60)
        drive.tick()
    else:
        api.end_override("api")
    assert ids(drive.take(2)) == [dear.id]


def test_it_goes_in_its_old_place(drive: Drive) -> None:
    drive.key(concurrency=10)
    api.pause("api")
    first, second, third = send(drive, 8, 1, 8)
    drive.limit(concurrency=5)
    api.resume("api")
    (run,) = drive.take(3)
    assert run.call == second.id
    api.pause("api")
    (last,) = send(drive, 1)
    drive.limit(concurrency=10)
    api.resume("api")
    assert drive.drain() == ids([first, third, last])


def test_one_that_fits_the_raised_limit_goes_and_one_that_does_not_stays(drive: Drive) -> None:
    drive.key(concurrency=20)
    api.pause("api")
    dearest, dear = send(drive, 20, 8)
    assert drive.limit(concurrency=5) == 2
    api.resume("api")
    drive.take(2)
    assert drive.limit(concurrency=10) == 1
    assert ids(drive.take(2)) == [dear.id]
    assert aside() == {dearest.id: 20}


def test_a_concurrency_of_zero_is_a_pause(drive: Drive) -> None:
    drive.key(concurrency=10)
    drive.limit(concurrency=0)
    (dear,) = send(drive, 8)
    assert (drive.take(), aside()) == ([], {})
    drive.limit(concurrency=5)
    assert (drive.take(), aside()) == ([], {dear.id: 8})
    drive.limit(concurrency=0)
    assert (drive.take(), aside()) == ([], {})


def test_one_that_a_second_key_never_allows_either_waits_for_both(drive: Drive) -> None:
    drive.key(concurrency=10)
    drive.key("other", concurrency=10)
    api.pause("api")
    dear = drive.send(costs={"api": 8, "other": 9})
    drive.limit(concurrency=5)
    drive.limit("other", concurrency=5)
    api.resume("api")
    assert drive.take() == []
    drive.limit(concurrency=10)
    assert drive.take() == []
    drive.limit("other", concurrency=9)
    assert ids(drive.take()) == [dear.id]


def test_the_key_of_the_queue_counts_too(drive: Drive) -> None:
    drive.key("queue:mail", concurrency=10)
    api.pause("queue:mail")
    drive.send(costs={"queue:mail": 8})
    assert drive.limit("queue:mail", concurrency=5) == 1


def test_what_runs_goes_on_when_its_cost_does_not_fit_any_more(drive: Drive) -> None:
    drive.key(concurrency=10)
    send(drive, 8)
    (run,) = drive.take()
    drive.limit(concurrency=5)
    drive.tick()
    assert (drive.state(run), aside(), drive.end(run)) == (State.ACTIVE, {}, True)


@pytest.mark.parametrize("on_limit", ["drop", "reschedule"])
def test_one_that_is_to_be_dropped_is_and_one_that_is_to_be_put_off_waits_alone(drive: Drive, on_limit: str) -> None:
    drive.key(concurrency=10)
    (dear,) = send(drive, 8, on_limit=on_limit, scheduled_at=drive.at(60))
    drive.limit(concurrency=5)
    drive.forward(60)
    assert drive.take() == []
    if on_limit == "drop":
        assert (drive.state(dear), drive.row(dear).reason) == (State.DISCARDED, Reason.LIMIT)
    else:
        assert (drive.state(dear), aside()) == (State.AVAILABLE, {dear.id: 8})


def test_it_can_be_cancelled_and_retried_and_does_not_pass_its_limit(drive: Drive) -> None:
    dear = waiting_alone(drive)
    assert api.run_now(dear) == [dear.id]
    assert (drive.take(), aside()) == ([], {dear.id: 8})
    assert api.cancel(dear) == [dear.id]
    assert aside() == {}
    assert api.retry(dear) == [dear.id]
    assert (drive.take(), aside()) == ([], {dear.id: 8})


def test_it_expires(drive: Drive) -> None:
    dear = waiting_alone(drive, expires_at=drive.at(30))
    drive.forward(30)
    row = drive.row(dear)
    assert (row.state, row.reason, aside()) == (State.DISCARDED, Reason.EXPIRED, {})


def test_a_count_before_a_change_names_how_many_will_wait_alone_and_changes_nothing(drive: Drive) -> None:
    drive.key(concurrency=100)
    api.pause("api")
    send(drive, 8, 8, 1, 30)
    counts = [
        ({"concurrency": 5}, 3),
        ({"concurrency": 8}, 1),
        ({"concurrency": 0}, 0),
        ({"rate": (10, 60)}, 1),
        ({}, 0),
    ]
    for limits, count in counts:
        assert api.count_oversized("api", limits) == count
    drive.limit(concurrency=20)
    # Among the other limits where these are kept.
    assert api.count_oversized("api", {"rate": (90, 60)}, keeps_others=True) == 1
    assert (aside(), drive.key().concurrency) == ({}, 20)
    with pytest.raises(KeyNotFound):
        api.count_oversized("nothing", {})
    with pytest.raises(PolicyInvalid):
        api.count_oversized("api", {"concurrency": -1})


def test_a_call_that_never_fits_is_refused_when_it_is_sent(drive: Drive) -> None:
    drive.key(concurrency=5)
    with pytest.raises(CallNeverRuns):
        drive.send(costs={"api": 8})
    # An override ends, and a pause, too.
    drive.override(seconds=60, concurrency=1)
    assert drive.send(costs={"api": 5})


def test_a_thousand_wait_alone_and_go_on(drive: Drive) -> None:
    drive.key(concurrency=10)
    api.pause("api")
    dear = drive.send_many(1_000, costs={"api": 8})
    (cheap,) = send(drive, 1)
    drive.limit(concurrency=5)
    api.resume("api")
    assert ids(drive.take()) == [cheap.id]
    assert len(aside()) == 1_000
    drive.limit(concurrency=10)
    assert aside() == {}
    assert ids(drive.take()) == [dear[0].id]
