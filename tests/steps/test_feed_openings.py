"""Keys that open for lanes which the step that finds it does not look at: those of other queues, of keys left out."""

from dataclasses import replace
from uuid import uuid4

import pytest

from dispatcher.engine import feed
from dispatcher.engine.feed import Step, Taker
from dispatcher.models import CallQueue, Lane, Queue, RateLimitKey
from tests.builders import committed
from tests.steps.feeding import TAKER, done, ids, send, take

pytestmark = [committed, pytest.mark.usefixtures("direct")]

OTHERS = replace(TAKER, queues=["post"])
"""A worker that takes the calls of the other queue alone, whichever."""


@pytest.fixture(autouse=True)
def _post(direct: None) -> None:
    Queue.objects.create(name="post", delivery="direct")


def park(key: RateLimitKey, *calls: CallQueue) -> None:
    """Let the lanes of these calls be parked on a key, where the latest step has left them held."""
    Lane.objects.filter(id__in=CallQueue.objects.filter(id__in=[call.id for call in calls]).values("lane_id")).update(
        is_held=False, parked_on=key
    )


def goes_on(step: Step, taker: Taker = TAKER) -> list[Step]:
    """Make the steps that a worker makes by itself after this one."""
    steps = [step]
    while steps[-1].has_moved or steps[-1].open_keys:
        steps.append(feed.step(taker, room=1, keys=steps[-1].open_keys))
    return steps


def behind_lanes_that_another_key_stops(count: int) -> CallQueue:
    """Park lanes on the key `shared` that another full key will stop, and behind them one of another queue."""
    shared = RateLimitKey.objects.declare("shared", concurrency=1)
    RateLimitKey.objects.declare("full", concurrency=1)
    send(keys=["full"])
    assert take(1).starts
    take(1)
    for number in range(count):
        RateLimitKey.objects.declare(f"tenant:{number}")
    stopped = [send(keys=["shared", "full", f"tenant:{number}"])[0] for number in range(count)]
    (last,) = send(queue="post", keys=["shared"], priority=-1)
    park(shared, last, *stopped)
    return last


@pytest.mark.parametrize("count", [1, 3, 4, 5])
def test_room_that_the_first_lanes_can_not_use_goes_to_a_lane_of_another_queue(count: int) -> None:
    RateLimitKey.objects.declare("shared", concurrency=1)
    send(keys=["shared"])
    (holder,) = take(1).starts
    last = behind_lanes_that_another_key_stops(count)
    goes_on(take(1, holder))
    assert ids(take(1, taker=OTHERS)) == [last.id]


def test_room_that_is_not_handed_over_goes_to_a_lane_of_another_queue() -> None:
    RateLimitKey.objects.declare("shared", concurrency=1)
    send(keys=["shared"])
    (holder,) = take(1).starts
    last = behind_lanes_that_another_key_stops(1)
    goes_on(feed.hand_over(TAKER, done(holder), room=1))
    assert ids(take(1, taker=OTHERS)) == [last.id]


@pytest.mark.parametrize("is_general", [False, True])
def test_a_key_that_opens_while_the_worker_leaves_its_lane_to_others_is_open_for_them(is_general: bool) -> None:  # noqa: FBT001
    shared = RateLimitKey.objects.declare("shared", concurrency=1)
    part = RateLimitKey.objects.declare("part", per_worker=1)
    send(keys=["part"])
    send(keys=["shared"])
    mine = take(2)
    (call,) = send(keys=["shared", "part"])
    park(shared, call)
    holder = next(start for start in mine.starts if list(start.keys) == [shared.id])
    step = take(1, holder, reached=[part.id], is_general=is_general)
    for _ in range(5):
        step = take(1, keys=step.open_keys, reached=[part.id], is_general=is_general)
    assert ids(take(1, taker=replace(TAKER, worker=uuid4()))) == [call.id]
