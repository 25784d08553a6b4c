"""Weights of queues: how the starts of a worker are shared by the queues that it serves.

Queues of direct delivery alone have weights: of the broker's Celery's consumer chooses, a fetch names their order.
"""

from collections import Counter
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from dispatcher.errors import CallInvalid
from dispatcher.models import CallQueue, Queue, RateLimitKey
from tests.drive import Drive, Run

pytestmark = pytest.mark.deliveries("direct")

QUEUES = ["often", "seldom", "spare"]


class Worker:
    """A worker of all these queues, whose calls end at once."""

    def __init__(self, drive: Drive) -> None:
        self.drive = drive
        self.runs: list[Run] = []

    def work(self, *, steps: int, room: int = 1) -> Counter[str]:
        """Count the starts of each queue."""
        starts: Counter[str] = Counter()
        for _ in range(steps):
            self.drive.clock.forward(0.01)
            self.runs = self.drive.take(room, ends=self.runs, queues=QUEUES)
            starts.update(self.drive.row(run).queue for run in self.runs)
        return starts


@pytest.fixture
def worker(drive: Drive) -> Worker:
    """Return a worker of queues with the weights 3, 1 and 1."""
    for name, weight in zip(QUEUES, (3, 1, 1), strict=True):
        drive.beside(drive.delivery, name)
        Queue.objects.filter(name=name).update(weight=weight)
    return Worker(drive)


def send(drive: Drive, queue: str, count: int = 40, *keys: str, **fields: Any) -> list[CallQueue]:
    """Send so many calls to a queue."""
    return drive.beside(drive.delivery, queue).send_many(count, *keys, **fields)


@pytest.mark.parametrize(("room", "steps"), [(1, 40), (2, 20), (4, 10), (5, 8)])
def test_starts_are_shared_by_weight(drive: Drive, worker: Worker, room: int, steps: int) -> None:
    send(drive, "often")
    send(drive, "seldom")
    assert worker.work(steps=steps, room=room) == {"often": 30, "seldom": 10}


def test_the_shares_are_those_of_queues_whatever_the_number_of_their_lanes(drive: Drive, worker: Worker) -> None:
    for number in range(12):
        send(drive, "seldom", 3, drive.key(f"tenant:{number}", concurrency=5).name)
    send(drive, "often")
    assert worker.work(steps=40) == {"often": 30, "seldom": 10}
    # Within a queue the lanes take turns.
    started = CallQueue.objects.filter(queue="seldom", attempt=1)
    assert len({*started.values_list("lane", flat=True)}) == 10


def test_the_turns_of_a_queue_whose_key_is_full_go_to_the_others(drive: Drive, worker: Worker) -> None:
    drive.key("queue:often", concurrency=0)
    for queue in QUEUES:
        send(drive, queue)
    assert worker.work(steps=10, room=2) == {"seldom": 10, "spare": 10}
    # It comes back with nothing saved: but for the turn that is due, 24 of 40.
    drive.limit("queue:often", concurrency=9)
    assert 23 <= worker.work(steps=10, room=4)["often"] <= 25


def test_calls_that_a_key_stops_take_no_turns_of_their_queue(drive: Drive, worker: Worker) -> None:
    drive.key("full", concurrency=0)
    send(drive, "often", 9, "full")
    send(drive, "often")
    send(drive, "seldom")
    assert worker.work(steps=1, room=4) == {"often": 3, "seldom": 1}


def test_a_queue_that_had_no_calls_has_saved_nothing(drive: Drive, worker: Worker) -> None:
    send(drive, "often", 60)
    assert worker.work(steps=30) == {"often": 30}
    send(drive, "seldom")
    assert worker.work(steps=1) == {"seldom": 1}, "it comes back at the present"
    assert worker.work(steps=16) == {"often": 12, "seldom": 4}


def test_priorities_go_before_weights(drive: Drive, worker: Worker) -> None:
    send(drive, "often")
    send(drive, "seldom", 6, priority=1)
    send(drive, "seldom")
    assert worker.work(steps=3, room=2) == {"seldom": 6}
    assert worker.work(steps=5, room=4) == {"often": 15, "seldom": 5}


def test_the_room_of_a_key_is_shared_by_weight(drive: Drive, worker: Worker) -> None:
    drive.key(concurrency=2)
    send(drive, "often", 40, "api")
    send(drive, "seldom", 40, "api")
    assert worker.work(steps=20, room=5) == {"often": 30, "seldom": 10}


def test_starts_count_and_not_their_costs(drive: Drive, worker: Worker) -> None:
    drive.key("tokens", concurrency=100)
    send(drive, "often", costs={"tokens": 2})
    send(drive, "seldom")
    assert worker.work(steps=20, room=2) == {"often": 30, "seldom": 10}


def test_with_equal_weights_lanes_take_turns_whatever_their_queue(drive: Drive, worker: Worker) -> None:
    Queue.objects.update(weight=5)
    for name in ("a", "b"):
        send(drive, "often", 40, drive.key(name, concurrency=9).name)
    send(drive, "seldom")
    assert worker.work(steps=30) == {"often": 20, "seldom": 10}


def test_a_changed_weight_counts_from_then_on(drive: Drive, worker: Worker) -> None:
    send(drive, "often")
    send(drive, "seldom")
    worker.work(steps=8)
    Queue.objects.filter(name="seldom").update(weight=6)
    Queue.objects.filter(name="often").update(weight=2)
    assert abs(worker.work(steps=24)["seldom"] - 18) <= 1


def test_in_strict_order_each_queue_goes_before_those_after_it(drive: Drive, worker: Worker, settings: Any) -> None:
    settings.DISPATCHER = {"queue_order": "strict"}
    drive.key("queue:often", concurrency=1)
    send(drive, "spare", 2, priority=9)
    send(drive, "seldom", 4)
    send(drive, "often", 2)
    # One key is full, and the next queue has the rest.
    assert worker.work(steps=2, room=2) == {"often": 2, "seldom": 2}
    assert worker.work(steps=1, room=3) == {"seldom": 2, "spare": 1}


@pytest.mark.parametrize("weight", [0, 1001])
@pytest.mark.usefixtures("worker")
def test_a_weight_out_of_bounds_is_refused(weight: int) -> None:
    with pytest.raises(IntegrityError, match="queue_weight_is_1_to_1000"), transaction.atomic():
        Queue.objects.filter(name="often").update(weight=weight)
    for model in (Queue, RateLimitKey):
        with pytest.raises(CallInvalid, match=rf"^weight: {weight} must be a whole number from 1 to 1000"):
            model.objects.create(name="mail", weight=weight)


@pytest.mark.parametrize("delivery", ["broker", "http"])
@pytest.mark.usefixtures("worker")
def test_a_weight_is_refused_without_direct_delivery(delivery: str) -> None:
    with pytest.raises(IntegrityError, match="queue_weight_is_of_direct_delivery"), transaction.atomic():
        Queue.objects.filter(name="often").update(delivery=delivery)
    Queue.objects.filter(name="often").update(delivery=delivery, weight=1)
