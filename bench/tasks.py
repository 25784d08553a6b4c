"""The tasks that the dispatcher and Celery alone are given, and the file where their runs are noted.

A note is 16 bytes: when the run began and ended. It takes some microseconds, so the tasks do nothing but what they say.
"""

import os
import struct
import time
from functools import cache
from pathlib import Path

from celery import Task, shared_task

RUN_S = 0.005
_RUN = struct.Struct("dd")


@shared_task
def nothing(**order: object) -> None:
    """Do nothing."""
    del order
    began_at = time.time()
    os.write(_notes(), _RUN.pack(began_at, time.time()))


@shared_task
def wait(seconds: float = RUN_S) -> None:
    """Take 5 ms, as a request to a third party nearby does, or as long as it says."""
    began_at = time.time()
    time.sleep(seconds)
    os.write(_notes(), _RUN.pack(began_at, time.time()))


@shared_task(bind=True)
def visit(self: Task, key: str) -> None:
    """Ask the witness for something that spends this key."""
    from project.shop import third_party  # noqa: PLC0415 -- Celery alone runs without the project

    third_party.ask("bench", keys=[key], call=self.request.id, seconds=0)


def forget_runs() -> None:
    """Begin without a note."""
    os.truncate(_notes(), 0)


def count_runs() -> int:
    """Return how many runs are noted."""
    return _path().stat().st_size // _RUN.size


def runs() -> list[tuple[float, float]]:
    """Return when each run began and ended, as Unix times, in order."""
    return sorted((began_at, ended_at) for began_at, ended_at in _RUN.iter_unpack(_path().read_bytes()))


def _path() -> Path:
    return Path(os.environ["BENCH_RUNS"])


@cache
def _notes() -> int:
    """Return the file, open in this process for as long as it lives."""
    return os.open(_path(), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
