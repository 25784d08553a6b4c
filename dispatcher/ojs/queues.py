"""The names of queues, and their rows."""

import re
from collections.abc import Collection, Mapping
from typing import Final

from dispatcher import lanes, sql
from dispatcher.models import Queue
from dispatcher.ojs.wire import invalid
from dispatcher.states import Delivery

QUEUE: Final = re.compile(r"[a-z0-9][a-z0-9.-]{0,127}")
"""A queue's name (ojs-core, section 5.3)."""


def queue_name(value: str) -> str:
    """Return a valid queue name from a path. Raises Problem."""
    if not QUEUE.fullmatch(value):
        raise invalid("queue", f"{value!r} must consist of a-z, 0-9, - and dots, and begin with a letter or a digit.")
    return value


def create_queues(names: Collection[str]) -> Mapping[str, Queue]:
    """Create the rows of queues that are named for the first time, and return those of the others by name."""
    known = _find(names)
    for name in sorted(set(names) - known.keys()):
        open_queue(name)
    return known


def open_queue(name: str) -> None:
    """Create the row of a queue named over HTTP; workers may fetch from it unless Celery uses it."""
    sql.change("open_queue", {"name": name, "delivery": lanes.declared_delivery(name)})


def assign_queues(names: Collection[str]) -> list[str]:
    """Assign undecided queues to workers that fetch; return those that Celery serves."""
    found = _find(names)
    if any(queue.is_undecided for queue in found.values()):
        Queue.objects.filter(name__in=names, is_undecided=True).update(is_undecided=False)
    return [name for name in names if name in found and found[name].delivery != Delivery.HTTP]


def _find(names: Collection[str]) -> dict[str, Queue]:
    return {queue.name: queue for queue in sql.fetch_checked("find_queues", Queue, {"names": list(names)})}
