"""Limits per worker: what one worker holds of a key at the most, and what it leaves to others.

The broker's queues have none: who claims a call is not known when it is admitted.
"""

from typing import Any

import pytest

from dispatcher import api
from dispatcher.api import any_of
from dispatcher.errors import CallInvalid, PolicyInvalid
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.states import State
from tests import faults
from tests.drive import Drive

by_worker = pytest.mark.deliveries("direct", "http")
refused = pytest.mark.deliveries("broker")


@by_worker
def test_one_worker_holds_its_part_and_leaves_the_rest_to_others(drive: Drive) -> None:
    drive.key(concurrency=3, per_worker=2)
    calls = drive.send_many(5, "api")
    mine = drive.take(4)
    assert [run.call for run in mine] == [call.id for call in calls[:2]]
    assert [run.call for run in drive.take(4, worker="two")] == [calls[2].id]
    # Now the key is full for all.
    assert drive.take(4, worker="three") == []
    assert [run.call for run in drive.take(4, ends=mine[:1])] == [calls[3].id]


@by_worker
def test_a_worker_at_its_limit_goes_on_with_calls_of_other_keys(drive: Drive) -> None:
    drive.key(per_worker=1)
    drive.send_many(2, "api", priority=5)
    (mine,) = drive.take(1)
    low = drive.send()
    assert [run.call for run in drive.take(1)] == [low.id]
    later = drive.send()
    assert [run.call for run in drive.take(2)] == [later.id]
    assert len(drive.take(2, ends=[mine])) == 1


@by_worker
def test_a_worker_with_room_takes_the_highest_of_those_that_another_may_not_take(drive: Drive) -> None:
    drive.key(per_worker=1)
    drive.send("api", priority=1)
    drive.take()
    for number in range(50):  # as many as are looked at
        drive.key(f"tenant:{number}")
        drive.send("api", f"tenant:{number}")
    high = drive.send("api", priority=5)
    assert drive.take(60) == []
    assert [run.call for run in drive.take(worker="two")] == [high.id]


@by_worker
def test_the_key_of_a_queue_limits_a_worker_too(drive: Drive) -> None:
    drive.key(f"queue:{drive.queue}", per_worker=2)
    drive.send_many(5)
    mine = drive.take(4)
    assert len(mine) == 2
    assert len(drive.take(4, worker="two")) == 2
    assert len(drive.take(4, ends=mine)) == 1


@by_worker
def test_a_member_of_a_group_limits_a_worker_too(drive: Drive) -> None:
    drive.key("egress:1", per_worker=1)
    drive.key("egress:2", per_worker=2)
    drive.send_many(6, any_of("egress:*"))
    assert len(drive.take(6)) == 3
    assert len(drive.take(6, worker="two")) == 3


@by_worker
def test_a_call_to_drop_at_a_limit_waits_for_a_worker_with_room(drive: Drive) -> None:
    drive.key(per_worker=1)
    _, second = drive.send_many(2, "api", on_limit="drop")
    assert len(drive.take(3)) == 1
    assert drive.state(second) == State.AVAILABLE
    assert [run.call for run in drive.take(3, worker="two")] == [second.id]


@by_worker
def test_costs_and_overrides_are_counted(drive: Drive) -> None:
    drive.key(per_worker=3)
    first, second = drive.send_many(2, costs={"api": 2})
    assert [run.call for run in drive.take(4)] == [first.id]
    drive.override(seconds=3_600, per_worker=4)
    assert [run.call for run in drive.take(4)] == [second.id]


@by_worker
def test_a_crowd_of_workers_has_no_more_than_its_parts(drive: Drive) -> None:
    drive.key(per_worker=2, concurrency=5)
    drive.send_many(20, "api")
    runs = {worker: drive.take(4, worker=worker) for worker in ("one", "two", "three")}
    assert [len(of_worker) for of_worker in runs.values()] == [2, 2, 1]
    for worker, of_worker in runs.items():
        assert len(drive.take(4, ends=of_worker, worker=worker)) <= 2
    assert drive.use() == 5


@by_worker
def test_a_key_that_opens_while_a_worker_leaves_its_lane_to_others_is_open_for_them(drive: Drive) -> None:
    drive.key("shared", concurrency=1)
    drive.key("part", per_worker=1)
    drive.send("part")
    drive.send("shared")
    runs = drive.take(2)
    call = drive.send("shared", "part")
    assert drive.take() == []
    holder = [run for run in runs if drive.held(run) == {"shared": 1}]
    assert drive.take(1, ends=holder) == []
    assert [run.call for run in drive.take(1, worker="two")] == [call.id]


@pytest.mark.deliveries("http")  # Celery's workers have ids.
def test_a_worker_without_a_name_gets_none_of_such_a_key(drive: Drive) -> None:
    drive.key(per_worker=2)
    drive.send("api")
    other = drive.send()
    assert [run.call for run in drive.take(2, worker=None)] == [other.id]  # type: ignore[arg-type]


# The broker


@refused
def test_a_call_of_a_queue_that_the_broker_delivers_is_refused(drive: Drive, settings: Any) -> None:
    drive.key("exports", per_worker=2)
    drive.key("egress:1", concurrency=2)
    drive.key("egress:2", per_worker=2)
    settings.DISPATCHER = {"keys": {"ip:1": {"per_worker": 1}}}
    for key in ("exports", any_of("egress:*"), any_of("ip:*")):
        with pytest.raises(CallInvalid, match="per_worker"):
            drive.send(key)
        with pytest.raises(CallInvalid, match="per_worker"):
            drive.send_many(2, key)
    with pytest.raises(CallInvalid, match="per_worker"):
        drive.send(rate_limit={"key": "new", "per_worker": 1})
    assert not CallQueue.objects.exists()


@refused
def test_a_limit_per_worker_is_refused_for_keys_that_the_broker_s_calls_spend(drive: Drive) -> None:
    drive.key("exports", concurrency=2)
    drive.key("egress:1", concurrency=2)
    drive.send("exports", any_of("egress:*"))
    for change in (
        lambda: api.limit("exports", {"per_worker": 1}),
        lambda: drive.override("exports", seconds=60, per_worker=1),
        lambda: api.limit("egress:1", {"per_worker": 1}),
        lambda: api.limit("egress:*", {"per_worker": 1}),
        lambda: api.declare("egress:2", {"per_worker": 1}),
        lambda: api.declare(f"queue:{drive.queue}", {"per_worker": 1}),
        lambda: drive.send(rate_limit={"key": "egress:3", "per_worker": 1}),
    ):
        with pytest.raises(PolicyInvalid, match=r"per[_ ]worker") as found:
            change()
        assert drive.queue in str(found.value)
    assert not RateLimitKey.objects.exclude(per_worker=None).exists()


@refused
def test_a_limit_per_worker_is_refused_for_the_key_of_a_queue_without_calls(drive: Drive, settings: Any) -> None:
    settings.DISPATCHER = {"delivery": {"declared": "broker", "*": "direct"}}
    for queue in (drive.queue, "declared"):
        with pytest.raises(PolicyInvalid, match=queue):
            api.declare(f"queue:{queue}", {"per_worker": 1})
    assert api.declare("queue:free", {"per_worker": 1}).per_worker == 1


@refused
def test_calls_of_the_broker_wait_where_such_a_mixture_arose_all_the_same(drive: Drive) -> None:
    drive.key(concurrency=0)
    call = drive.send("api")
    RateLimitKey.objects.filter(name="api").update(concurrency=None, per_worker=5)
    faults.forward_unnoted(drive, 20)
    assert drive.take() == []
    RateLimitKey.objects.filter(name="api").update(per_worker=None)
    api.resume("api")
    drive.forward(1)
    assert [run.call for run in drive.take()] == [call.id]
