"""Celery alone, which figures are compared with: an app without the dispatcher, and its workers.

Each worker has a queue of its own at the broker of the run, and no result backend.
"""

import os
import time

from celery import Celery

from bench.load import Load
from project.processes import Stack

app = Celery(
    "bare", broker=os.environ.get("CELERY_BROKER_URL"), include=["bench.tasks"], fixups=[], set_as_current=False
)
app.conf.update(task_ignore_result=True, worker_redirect_stdouts=False, broker_connection_retry_on_startup=True)
"""Without Django: a worker loads nothing of the project."""


class Bare(Load):
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

    def open_backlog(self, calls: int, task: str) -> float:
        """Let tasks wait at the broker; return the Unix time from which the worker may have them."""
        app.control.cancel_consumer(self._queue, reply=True)
        for _ in range(calls):
            self.send(task)
        began = time.time()
        app.control.add_consumer(self._queue)
        return began
