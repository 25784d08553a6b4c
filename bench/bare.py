"""Celery alone, which figures are compared with: an app without the dispatcher, its workers, and what they are given.

Each worker has a queue of its own at the broker of the run, and no result backend.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from statistics import median

from celery import Celery

from bench.figures import wait_for
from bench.tasks import count_runs, forget_runs, runs
from project.processes import Stack

app = Celery(
    "bare", broker=os.environ.get("CELERY_BROKER_URL"), include=["bench.tasks"], fixups=[], set_as_current=False
)
app.conf.update(task_ignore_result=True, worker_redirect_stdouts=False, broker_connection_retry_on_startup=True)
"""Without Django: a worker loads nothing of the project."""


class Bare:
    """A worker of Celery alone."""

    def __init__(self, stack: Stack, *, prefetch: int = 4, concurrency: int = 2) -> None:
        """Start it. prefetch: messages that it holds for each process; 4 is Celery's default."""
        self._queue = f"bare.{prefetch}.{concurrency}"
        stack.start_worker(
            self._queue, "--prefetch-multiplier", str(prefetch), app="bench.bare:app", queues=[self._queue],
            concurrency=concurrency
        )  # fmt: skip

    def send(self, task: str = "nothing") -> None:
        """Publish one task."""
        app.tasks[f"bench.tasks.{task}"].apply_async(queue=self._queue)

    def end_to_end(self, calls: int) -> float:
        """Return the tasks per second from the first that is published to the last that has run."""
        forget_runs()
        began = time.time()
        for _ in range(calls):
            self.send()
        wait_for(count_runs, calls)
        return calls / (runs()[-1][1] - began)

    def drain(self, calls: int, task: str = "nothing") -> float:
        """Return the tasks per second of a backlog."""
        with self._backlog(calls, task) as began:
            wait_for(count_runs, calls)
        return calls / (runs()[-1][1] - began)

    def hand_over(self, calls: int) -> float:
        """Return the median milliseconds from the end of a task to the start of the next, with a backlog."""
        with self._backlog(calls, "nothing"):
            wait_for(count_runs, calls)
        return gap()

    def start(self, calls: int) -> float:
        """Return the median milliseconds from before a publication to the start, while the worker is idle."""
        forget_runs()
        sent = []
        for number in range(1, calls + 1):
            sent.append(time.time())
            self.send()
            wait_for(count_runs, number)
            time.sleep(0.01)
        return delay(sent)

    @contextmanager
    def _backlog(self, calls: int, task: str) -> Iterator[float]:
        """Let tasks wait at the broker; yield the Unix time from which the worker may have them."""
        forget_runs()
        app.control.cancel_consumer(self._queue, reply=True)
        for _ in range(calls):
            self.send(task)
        began = time.time()
        app.control.add_consumer(self._queue)
        yield began


def gap() -> float:
    """Return the median milliseconds from the end of a run to the start of the next."""
    return 1_000 * median(began - ended for (_, ended), (began, _) in pairwise(runs()))


def delay(sent: list[float]) -> float:
    """Return the median milliseconds from these Unix times to the starts, one each."""
    return 1_000 * median(began - at for at, (began, _) in zip(sent, runs(), strict=True))
