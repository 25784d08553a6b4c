"""Tasks of Celery's that are sent to queues that workers fetch from over HTTP."""

import logging
from collections.abc import Iterable

from celery import current_app

from dispatcher.models import CallQueue, Queue
from dispatcher.states import Delivery, State

logger = logging.getLogger(__name__)

_seen: set[tuple[str, str]] = set()
"""The tasks and queues that this process has looked at."""


def report(sent: Iterable[CallQueue]) -> None:
    """Log, once per process, each of Celery's tasks that was sent to a queue that no worker of Celery's serves."""
    waiting = {(call.task, call.queue) for call in sent if call.state == State.AVAILABLE}
    new = {(task, queue) for task, queue in waiting - _seen if task in current_app.tasks}
    if not new:
        return
    _seen.update(new)
    fetched = Queue.objects.filter(name__in={queue for _, queue in new}, delivery=Delivery.HTTP)
    names = set(fetched.values_list("name", flat=True))
    for task, queue in sorted(new):
        if queue in names:
            logger.warning(
                "task %s was sent to queue %r, which workers fetch from over HTTP: no worker of Celery's runs it. "
                "Send it to another queue, or let Celery serve this one (admin, Queues).",
                task,
                queue,
            )
