"""The key of a queue: it limits every call of that queue, and no other."""

import pytest

from dispatcher import api
from tests.drive import Drive


def test_the_key_of_a_queue_limits_its_calls_whatever_keys_they_name(drive: Drive) -> None:
    drive.key(f"queue:{drive.queue}", concurrency=2)
    drive.key("api")
    calls = [drive.send("api"), drive.send(), drive.send("api")]
    runs = drive.take(3)
    assert len(runs) == 2
    assert drive.use(f"queue:{drive.queue}") == 2
    assert [len(drive.held(call)) for call in calls if drive.held(call)] == [2, 1]
    assert len(drive.take(3, ends=runs[:1])) == 1


@pytest.mark.ojs
def test_the_key_of_a_queue_limits_no_other_queue(drive: Drive) -> None:
    drive.key(f"queue:{drive.queue}", concurrency=0)
    others = [drive.beside(name) for name in ("direct", "broker", "http")]
    call = drive.send()
    started = [each.send().id for each in others]
    assert drive.take() == []
    assert [run.call for each in others for run in each.take()] == started
    drive.limit(f"queue:{drive.queue}", concurrency=1)
    assert [run.call for run in drive.take()] == [call.id]


def test_the_key_of_a_queue_has_windows_and_throttles_as_any_other(drive: Drive) -> None:
    drive.key(f"queue:{drive.queue}", rate=(2, 60), throttle=(1, 5))
    drive.send_many(4)
    count = 0
    for _ in range(4):
        count += len(drive.drain())
        drive.forward(5.02)
    assert count == 2


def test_a_queue_key_that_is_made_later_applies_to_what_waits_already(drive: Drive) -> None:
    drive.key("full", concurrency=0)
    call = drive.send("full")
    assert drive.take() == []
    drive.key(f"queue:{drive.queue}", concurrency=0)
    drive.limit("full", concurrency=1)
    assert drive.take() == []
    drive.limit(f"queue:{drive.queue}", concurrency=1)
    assert [run.call for run in drive.take()] == [call.id]
    assert drive.held(call) == {"full": 1, f"queue:{drive.queue}": 1}


def test_a_paused_queue_key_stops_its_queue(drive: Drive) -> None:
    drive.key(f"queue:{drive.queue}")
    api.pause(f"queue:{drive.queue}")
    call = drive.send()
    assert drive.take() == []
    api.resume(f"queue:{drive.queue}")
    assert [run.call for run in drive.take()] == [call.id]
