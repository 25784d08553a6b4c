"""The names of queues, and their rows."""

import re
from collections.abc import Iterable
from typing import Final

from dispatcher.conf import conf
from dispatcher.models import Queue
from dispatcher.ojs import fetch
from dispatcher.ojs.wire import invalid

QUEUE: Final = re.compile(r"[a-z0-9][a-z0-9.-]{0,127}")
"""A queue's name (ojs-core, section 5.3)."""


def queue_name(value: str) -> str:
    """Return a valid queue name from a path. Raises Problem."""
    if not QUEUE.fullmatch(value):
        raise invalid("queue", f"{value!r} must consist of a-z, 0-9, - and dots, and begin with a letter or a digit.")
    return value


def create_queues(names: Iterable[str]) -> None:
    """Create the rows of queues that are named for the first time."""
    wanted = set(names)
    known = set(Queue.objects.using(conf().database).filter(name__in=wanted).values_list("name", flat=True))
    for name in sorted(wanted - known):
        fetch.open_queue(name)
