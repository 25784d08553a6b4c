"""The tasks that are called for the benchmarks, by the dispatcher and by Celery alone."""

import os
import time
from functools import cache

import redis
from celery import Task, shared_task

from project.shop import third_party

DONE = "bench:done"
STARTED = "bench:started"


@shared_task
def nothing(**order: object) -> None:
    """Do nothing, and count that it was done."""
    del order
    notes().incr(DONE)


@shared_task
def stamp() -> list[float]:
    """Return when it started and ended, as it sees it."""
    return [time.time(), time.time()]


@shared_task
def arrive(sent_at: float) -> None:
    """Note how long after it was sent it started, in seconds."""
    notes().rpush(STARTED, time.time() - sent_at)


@shared_task(bind=True)
def visit(self: Task, key: str) -> None:
    """Ask the witness for something that spends this key."""
    third_party.ask("bench", keys=[key], call=self.request.id, seconds=0)


@cache
def notes() -> redis.Redis:
    """Return the connection of this process to where tasks note what they saw."""
    return redis.Redis.from_url(os.environ["BENCH_NOTES_URL"])
