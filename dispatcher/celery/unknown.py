"""Unknown tasks: a worker puts back calls of tasks that it does not know, where Celery would fail them."""

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from celery import bootsteps, signals

from dispatcher import engine
from dispatcher.celery import heartbeat
from dispatcher.engine import workers
from dispatcher.messages.tickets import ticket_in

if TYPE_CHECKING:
    # Not while Django is set up: an SDK that traces tasks patches what the consumer imports.
    from celery.worker.consumer import Consumer

logger = logging.getLogger(__name__)


class UnknownTasks(bootsteps.Step):
    """Lets the worker's consumer put the calls of unknown tasks back.

    Celery itself stores the failure of such a message in the result backend, before it sends `task_unknown`.
    """

    def __init__(self, consumer: "Consumer", **kwargs: Any) -> None:
        """Wrap the consumer's handler of unknown tasks."""
        super().__init__(consumer, **kwargs)
        consumer.on_unknown_task = partial(_on_unknown_task, consumer, consumer.on_unknown_task)


def _on_unknown_task(
    consumer: "Consumer", refuse: Callable[..., None], body: Any, message: Any, exc: Exception
) -> None:
    """Put back a call whose task this worker does not know; no attempt is spent."""
    if (ticket := ticket_of(message)) is None:
        refuse(body, message, exc)
        return
    message.ack_log_error(logger, consumer.connection_errors)
    name, call = message.headers["task"], message.headers["id"]
    logger.warning("this worker has no task %s; its call %s waits for a worker that has it", name, call)
    heartbeat.in_background(
        f"put back call {call}, which keeps its slots until its lease ends",
        partial(workers.return_unknown, UUID(call), ticket),
    )


@signals.task_rejected.connect
def fail_rejected(message: Any, exc: Exception | None, **_: Any) -> None:
    """Record a failed attempt of a call whose message Celery can't read and drops."""
    ticket = ticket_of(message)
    if ticket is not None and exc is not None:
        call = message.headers["id"]
        heartbeat.in_background(
            f"fail call {call}, which keeps its slots until its lease ends",
            partial(engine.fail_unread, UUID(call), ticket, exc),
        )


def ticket_of(message: Any) -> UUID | None:
    """Return the ticket that a message carries; None if it came without the dispatcher."""
    headers = message.headers or {}
    return ticket_in(headers, headers.get("id"))
