"""Calls that share the one slot of a key, and the worker that runs them."""

from collections.abc import Mapping

import pytest

from dispatcher.models import CallQueue, Worker
from dispatcher.states import TERMINAL, State
from tests.flows.processes import Processes
from tests.flows.settings import QUEUE
from tests.races.lockstep import concurrent, eventually

DIRECT = [
    concurrent,
    pytest.mark.usefixtures("one_slot"),
    pytest.mark.direct,
    pytest.mark.parametrize("delivery", ["direct"], indirect=True),
    pytest.mark.slow,
]
"""Marks of flows of direct queues."""
BOTH = [
    concurrent,
    pytest.mark.usefixtures("ticking", "one_slot"),
    pytest.mark.parametrize("delivery", ["broker", pytest.param("direct", marks=pytest.mark.direct)], indirect=True),
    pytest.mark.broker,
    pytest.mark.celery,
    pytest.mark.slow,
]
"""Marks of flows that are the same with the broker and without."""


def start(processes: Processes, *options: str, env: Mapping[str, str] | None = None) -> Worker:
    """Start a worker, and return what it says of itself."""
    known = set(Worker.objects.values_list("id", flat=True))
    processes.start_worker("worker", *options, env=env)
    processes.stack.wait_ready()
    return eventually(Worker.objects.exclude(id__in=known).filter(queues__contains=[QUEUE]).first)


def send(task: object, *args: object, **options: object) -> CallQueue:
    """Send a call to the worker."""
    return CallQueue.objects.send(task, args=args, **{"keys": ["api"], "queue": QUEUE, **options})


def running(call: CallQueue) -> CallQueue:
    """Wait until a call runs, and return it."""
    return eventually(CallQueue.objects.filter(id=call.id, state=State.ACTIVE).first)


def ended(call: CallQueue) -> CallQueue:
    """Wait until a call has ended, and return it."""
    return eventually(CallQueue.objects.filter(id=call.id, state__in=TERMINAL).first)
