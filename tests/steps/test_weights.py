"""Weights of queues: how the turns of a worker are shared by the direct queues that it serves."""

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any
from uuid import uuid4

import pytest
from django.db import IntegrityError, transaction

from dispatcher import api, ending
from dispatcher.engine import feed, workers
from dispatcher.engine.feed import Start, Step, Taker
from dispatcher.errors import CallInvalid
from dispatcher.lifecycle.finish import Ended
from dispatcher.limits.turns import Turns
from dispatcher.models import CallQueue, Queue, RateLimitKey
from dispatcher.request import Call
from dispatcher.validate import queue_weight
from tests.builders import committed
from tests.races.audit import audit

pytestmark = committed

QUEUES = ["often", "seldom", "spare"]
both_ways = pytest.mark.parametrize("is_general", [False, True])


@pytest.fixture(autouse=True)
def _direct(db: None) -> Iterator[None]:
    for name, weight in zip(QUEUES, (3, 1, 1), strict=True):
        Queue.objects.create(name=name, delivery="direct", weight=weight)
    yield
    audit(has_ended=False)


class Worker:
    """A worker whose calls end at once: each step records those of the step before."""

    def __init__(self, *, is_general: bool = False) -> None:
        """Serve all queues by the weights that are stored."""
        self.is_general = self.has_left = is_general
        self.turns = Turns(workers.direct_queues(QUEUES))
        self.taker = Taker(worker=uuid4(), queues=QUEUES, tasks=["noop"], turns=self.turns)
        self.running: list[Start] = []

    def step(self, room: int = 1) -> list[str]:
        """Start up to so many calls, and return their queues."""
        ends = [
            Ended(
                call_id=start.call.id,
                ticket=start.call.ticket,
                claim_id=start.claimed.claim_id,
                ending=ending.completed(1),
            )
            for start in self.running
        ]
        made: Step = feed.step(self.taker, ends, room=room, is_general=self.has_left)
        self.has_left = self.is_general or made.has_left
        self.running = [*made.starts]
        return [start.call.queue for start in made.starts]

    def run(self, *, steps: int, room: int = 1) -> Counter[str]:
        """Count the starts of each queue."""
        return Counter(queue for _ in range(steps) for queue in self.step(room))


def send(queue: str, count: int = 40, **fields: Any) -> None:
    CallQueue.objects.send_many([Call(task="noop", queue=queue, **fields) for _ in range(count)])


def declare(names: Collection[str], **limits: Any) -> None:
    for name in names:
        RateLimitKey.objects.declare(name, **limits)


@both_ways
@pytest.mark.parametrize(("room", "steps"), [(1, 40), (2, 20), (4, 10), (5, 8)])
def test_starts_are_shared_by_weight(room: int, steps: int, is_general: bool) -> None:  # noqa: FBT001
    send("often")
    send("seldom")
    assert Worker(is_general=is_general).run(steps=steps, room=room) == {"often": 30, "seldom": 10}


@both_ways
def test_the_shares_are_those_of_queues_whatever_the_number_of_their_lanes(is_general: bool) -> None:  # noqa: FBT001
    tenants = [f"tenant{number}" for number in range(12)]
    declare(tenants, concurrency=5)
    for tenant in tenants:
        send("seldom", 3, keys=[tenant])
    send("often")
    worker = Worker(is_general=is_general)
    assert worker.run(steps=40) == {"often": 30, "seldom": 10}
    # Within a queue the lanes take turns.
    started = CallQueue.objects.filter(queue="seldom", attempt=1)
    assert started.values("lane").distinct().count() == 10


@both_ways
def test_the_turns_of_a_queue_whose_key_is_full_go_to_the_others(is_general: bool) -> None:  # noqa: FBT001
    RateLimitKey.objects.declare("queue:often", concurrency=0)
    for queue in QUEUES:
        send(queue)
    worker = Worker(is_general=is_general)
    assert worker.run(steps=10, room=2) == {"seldom": 10, "spare": 10}
    # It comes back with nothing saved.
    api.limit("queue:often", {"concurrency": 9})
    assert worker.run(steps=10, room=4) == {"often": 24, "seldom": 8, "spare": 8}


def test_calls_that_a_key_stops_take_no_turns_of_their_queue() -> None:
    RateLimitKey.objects.declare("full", concurrency=0)
    send("often", 9, keys=["full"])
    send("often")
    send("seldom")
    assert Worker().step(4) == ["often", "seldom", "often", "often"]


@both_ways
def test_a_queue_that_had_no_calls_has_saved_nothing(is_general: bool) -> None:  # noqa: FBT001
    send("often", 60)
    worker = Worker(is_general=is_general)
    assert worker.run(steps=30) == {"often": 30}
    send("seldom")
    assert worker.step() == ["seldom"], "it comes back at the present"
    assert worker.run(steps=16) == {"often": 12, "seldom": 4}


@both_ways
def test_priorities_go_before_weights(is_general: bool) -> None:  # noqa: FBT001
    send("often")
    send("seldom", 6, priority=1)
    send("seldom")
    worker = Worker(is_general=is_general)
    assert worker.run(steps=3, room=2) == {"seldom": 6}
    assert worker.run(steps=5, room=4) == {"often": 15, "seldom": 5}


@both_ways
def test_the_room_of_a_key_is_shared_by_weight(is_general: bool) -> None:  # noqa: FBT001
    RateLimitKey.objects.declare("api", concurrency=2)
    send("often", keys=["api"])
    send("seldom", keys=["api"])
    assert Worker(is_general=is_general).run(steps=20, room=5) == {"often": 30, "seldom": 10}


def test_lanes_that_a_plain_step_leaves_take_their_turns_too() -> None:
    RateLimitKey.objects.declare("tokens", concurrency=100)
    send("often", keys={"tokens": 2})
    send("seldom")
    assert Worker().run(steps=20, room=2) == {"often": 30, "seldom": 10}


def test_with_equal_weights_lanes_take_turns_as_without() -> None:
    Queue.objects.update(weight=5)
    declare(["a", "b"], concurrency=9)
    for key in ("a", "b"):
        send("often", keys=[key])
    send("seldom")
    worker = Worker()
    assert worker.turns.shares() == {}
    assert worker.run(steps=30) == {"often": 20, "seldom": 10}


def test_a_change_counts_with_the_next_look() -> None:
    send("often")
    send("seldom")
    worker = Worker()
    worker.run(steps=8)
    Queue.objects.filter(name="seldom").update(weight=6)
    Queue.objects.filter(name="often").update(weight=2)
    worker.turns.set_weights(workers.direct_queues(QUEUES))
    assert abs(worker.run(steps=24)["seldom"] - 18) <= 1


# What is refused


@pytest.mark.parametrize("delivery", ["broker", "http"])
def test_a_weight_is_refused_without_direct_delivery(delivery: str) -> None:
    with pytest.raises(CallInvalid, match="direct") as refused:
        queue_weight(2, delivery)
    assert refused.value.field == "weight"
    queue_weight(1, delivery)
    with pytest.raises(IntegrityError, match="queue_weight_is_of_direct_delivery"), transaction.atomic():
        Queue.objects.filter(name="often").update(delivery=delivery)
    Queue.objects.filter(name="often").update(delivery=delivery, weight=1)


@pytest.mark.parametrize("weight", [0, 1001])
def test_a_weight_out_of_bounds_is_refused(weight: int) -> None:
    with pytest.raises(IntegrityError, match="queue_weight_is_known"), transaction.atomic():
        Queue.objects.filter(name="often").update(weight=weight)
