"""Where nothing can start, a worker comes to rest: its steps find nothing that another step could do at once.

The driver fails where a worker goes on looking. Only workers that take calls from PostgreSQL look by themselves.
"""

import pytest

from dispatcher import api
from tests.drive import Drive, Run
from tests.faults import locked

pytestmark = pytest.mark.deliveries("direct")


def holder_of(drive: Drive) -> Run:
    """Let a call fill the key `api`; return its run."""
    drive.key(concurrency=1)
    drive.send("api")
    (run,) = drive.take()
    return run


@pytest.mark.parametrize("lanes", [1, 20])
@pytest.mark.parametrize("queue", ["direct", "broker"])
def test_a_worker_rests_while_a_paused_key_stops_lanes(drive: Drive, queue: str, lanes: int) -> None:
    run = holder_of(drive)
    other = drive if queue == "direct" else drive.beside(queue)
    for number in range(lanes):
        drive.key(f"tenant:{number}")
        other.send("api", f"tenant:{number}")
    assert drive.take(4) == []
    api.pause("api")
    assert drive.take(4, ends=[run]) == []


@pytest.mark.parametrize("lanes", [1, 20])
@pytest.mark.parametrize("queue", ["direct", "broker"])
def test_a_worker_rests_while_calls_cost_more_than_is_left(drive: Drive, queue: str, lanes: int) -> None:
    drive.key(concurrency=5)
    drive.send_many(3, "api")
    first, *_ = drive.take(3)
    other = drive if queue == "direct" else drive.beside(queue)
    for number in range(lanes):
        drive.key(f"tenant:{number}")
        other.send(costs={"api": 4, f"tenant:{number}": 1})
    assert drive.take(4) == []
    assert drive.take(4, ends=[first]) == []


def test_a_worker_rests_while_a_key_is_full_by_its_override_its_window_or_its_own_part(drive: Drive) -> None:
    drive.key("lowered", concurrency=5)
    drive.override("lowered", concurrency=2, seconds=3600)
    drive.key("timed", concurrency=2, rate=(1, 3600))
    drive.key("shared", concurrency=4, per_worker=1)
    for name, allowed in (("lowered", 2), ("timed", 1), ("shared", 1)):
        drive.send_many(4, name)
        runs = drive.take(4)
        assert len(runs) == allowed
        assert drive.take(4) == []


@pytest.mark.parametrize("row", ["call", "lane", "key"])
def test_a_worker_rests_while_a_user_has_locked_all_that_is_left(drive: Drive, row: str) -> None:
    drive.key(concurrency=5)
    call = drive.send("api")
    with locked(row, "api" if row == "key" else call):
        assert drive.take(4) == []
    assert [run.call for run in drive.take(4)] == [call.id]


def test_a_worker_rests_beside_a_locked_call_and_a_key_that_is_blocked(drive: Drive) -> None:
    drive.key(concurrency=2)
    drive.send("api")
    call = drive.send("api", priority=5)
    api.block("api", 30)
    with locked("call", call):
        assert drive.take() == []
