"""Turns of queues with real workers: a key that is short serves the queues that wait for it one after the other."""

from itertools import groupby

import pytest

from dispatcher.models import CallQueue, Queue, RateLimitKey
from dispatcher.request import Call
from tests.flows import sample_tasks
from tests.flows.processes import Processes, all_ended
from tests.flows.settings import QUEUE
from tests.races.lockstep import concurrent, eventually

pytestmark = [concurrent, pytest.mark.slow]


@pytest.mark.parametrize("other", ["direct", "broker"])
def test_two_queues_with_a_worker_each_alternate_on_a_key(processes: Processes, other: str) -> None:
    RateLimitKey.objects.declare("turns", concurrency=1)
    workers = [("worker", QUEUE, "direct"), ("second", "beside", other)]
    for worker, queue, delivery in workers:
        Queue.objects.update_or_create(name=queue, defaults={"delivery": delivery})
        processes.start_worker(worker, "-Q", queue, "-c", "1", env={"FLOWS_FALLBACK": "1"})
    processes.stack.wait_ready()
    CallQueue.objects.send_many(
        Call(sample_tasks.echo_slowly, args=["x", 0.005], queue=queue, keys=["turns"])
        for _, queue, _ in workers
        for _ in range(40)
    )
    eventually(all_ended)
    processes.kill_workers()
    order = CallQueue.objects.order_by("started_at").values_list("queue", flat=True)
    # At both ends one of them has no worker that is idle yet, or no call any more.
    turns = [len(list(group)) for _, group in groupby(order)]
    assert set(turns[1:-1]) == {1}, turns
