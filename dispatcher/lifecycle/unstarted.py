"""Unstarted: calls that came back without a start, and go on when a worker comes that knows their task."""

from collections.abc import Collection
from datetime import datetime
from typing import Final

from dispatcher import sql

_BATCH: Final = 1_000
"""The most calls that one statement lets wait in their lanes again."""


def wake(queues: Collection[str], tasks: Collection[str], *, now: datetime | None = None) -> int:
    """Let the returned calls of these queues and tasks go on if a live worker knows the task; return how many.

    They are noted: after the commit the caller dispenses.
    """
    params = {"queues": list(queues), "tasks": list(tasks), "most": _BATCH, "now": now}
    count = 0
    while True:
        (woken,) = sql.fetch("wake_returned", int, params)
        count += woken
        if woken < _BATCH:
            return count
