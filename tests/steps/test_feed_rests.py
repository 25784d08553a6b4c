"""A worker comes to rest: where nothing changes, its steps find nothing that another one could do at once."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dispatcher import api
from dispatcher.engine import feed
from dispatcher.engine.feed import Start, Step, Taker
from dispatcher.models import Lane, RateLimitKey
from tests import db_admin
from tests.builders import committed
from tests.steps.feeding import TAKER, ids, send, take

pytestmark = [committed, pytest.mark.usefixtures("direct")]

_MOST = 8
"""How many steps a worker may make until it waits."""


def steps_until_rest(step: Step, *, taker: Taker = TAKER, room: int = 4) -> int:
    """Make the steps that a worker makes without a wait after this one; return how many, `_MOST` at the most."""
    count, reached, refilled = 0, {*step.reached}, set[int]()
    while (step.has_moved or step.open_keys or {*step.refilled} - refilled) and count < _MOST:
        refilled = {*step.refilled}
        step = feed.step(taker, room=room, keys=step.open_keys, reached=reached, is_general=step.has_left)
        reached |= {*step.reached}
        room -= len(step.starts)
        count += 1
    return count


def holder_of(**limits: Any) -> Start:
    """Let a call hold a slot of the key `api`; return its start."""
    RateLimitKey.objects.declare("api", **limits)
    send(keys=["api"])
    (start,) = take(1).starts
    return start


def test_a_worker_rests_while_a_key_is_paused() -> None:
    start = holder_of(concurrency=1)
    send(keys=["api"])
    take(4)
    assert Lane.objects.get().parked_on is not None
    api.pause("api")
    assert steps_until_rest(take(4, start)) < _MOST


def test_a_worker_rests_while_a_paused_key_stops_more_lanes_than_it_takes() -> None:
    start = holder_of(concurrency=1)
    for number in range(20):
        RateLimitKey.objects.declare(f"tenant:{number}")
        send(keys=["api", f"tenant:{number}"])
    Lane.objects.update(is_held=False, is_awake=False, parked_on=RateLimitKey.objects.get(name="api"))
    api.pause("api")
    assert steps_until_rest(take(4, start)) < _MOST


def test_a_worker_rests_while_a_call_costs_more_than_is_left() -> None:
    RateLimitKey.objects.declare("api", concurrency=5)
    send(3, keys=["api"])
    first, *_ = take(3).starts
    send(keys={"api": 4})
    take(4)
    assert Lane.objects.get().parked_on is not None
    assert steps_until_rest(take(4, first)) < _MOST


def test_a_worker_rests_while_a_key_with_an_override_is_full() -> None:
    RateLimitKey.objects.declare("api", concurrency=5)
    api.override("api", concurrency=2, until=datetime.now(UTC) + timedelta(hours=1))
    send(5, keys=["api"])
    first, *_ = take(5).starts
    take(5)
    assert Lane.objects.get().parked_on is not None
    assert steps_until_rest(take(4, first)) < _MOST


def test_a_worker_rests_while_a_paused_key_stops_a_lane_of_a_queue_of_the_broker() -> None:
    start = holder_of(concurrency=1)
    send(queue="letters", keys=["api"])
    assert Lane.objects.get(queue="letters").parked_on is not None
    api.pause("api")
    assert steps_until_rest(take(4, start)) < _MOST


def test_a_worker_rests_while_its_part_of_a_key_stops_a_lane() -> None:
    RateLimitKey.objects.declare("part", concurrency=4, per_worker=1)
    send(3, keys=["part"])
    step = take(4)
    assert len(step.starts) == 1
    assert steps_until_rest(step) < _MOST


def test_a_worker_rests_while_a_window_is_full() -> None:
    RateLimitKey.objects.declare("api", concurrency=2, rate=(1, "PT1H"))
    send(3, keys=["api"])
    step = take(4)
    assert len(step.starts) == 1
    assert steps_until_rest(take(4, *step.starts)) < _MOST


def test_a_worker_rests_while_another_transaction_has_locked_the_last_call_of_a_lane() -> None:
    (call,) = send()
    with db_admin.connect(autocommit=False) as other:
        other.execute("SELECT FROM dispatcher_callqueue WHERE id = %s FOR UPDATE", [call.id])
        assert steps_until_rest(take(4)) < _MOST
        other.rollback()
    assert ids(take(4)) == [call.id]


@pytest.mark.parametrize("queue", ["mail", "letters"])
def test_a_worker_rests_while_many_lanes_cost_more_than_is_left(queue: str) -> None:
    RateLimitKey.objects.declare("api", concurrency=5)
    send(3, keys=["api"])
    first, *_ = take(3).starts
    for number in range(20):
        RateLimitKey.objects.declare(f"tenant:{number}")
        send(queue=queue, keys={"api": 4, f"tenant:{number}": 1})
    api_key = RateLimitKey.objects.get(name="api")
    Lane.objects.exclude(key_ids=[api_key.id]).update(is_held=False, is_awake=False, parked_on=api_key)
    assert steps_until_rest(take(4, first)) < _MOST
