"""Tasks whose behaviour a test sets, and functions that run them."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from celery import Task, shared_task
from celery.result import EagerResult
from django.db.models.functions import Now

from dispatcher.lifecycle import schedule
from dispatcher.messages.tickets import TICKET_HEADER
from dispatcher.models import CallQueue
from dispatcher.states import State
from tests.builders import go, seen, ticket_of

Behaviour = Callable[[Task], Any]
behaviours: list[Behaviour] = []
"""What the task does, attempt by attempt; the last one over and over."""
ran: list[Any] = []
"""(retries, args) of every run of the task."""


@shared_task(name="tests.do", bind=True)
def do(self: Task, *args: Any) -> Any:
    ran.append((self.request.retries, args))
    return behaviours[min(len(ran), len(behaviours)) - 1](self)


@shared_task(
    name="tests.autoretry", bind=True, autoretry_for=(OSError,), max_retries=2, retry_backoff=7, retry_jitter=False
)
def autoretry(self: Task) -> Any:
    ran.append((self.request.retries, ()))
    return behaviours[0](self)


@shared_task(name="tests.patient", bind=True, default_retry_delay=40, max_retries=None)
def patient(self: Task) -> Any:
    ran.append((self.request.retries, ()))
    return behaviours[0](self)


@shared_task(
    name="tests.autoretry_elsewhere",
    bind=True,
    autoretry_for=(OSError,),
    retry_kwargs={"queue": "slow", "countdown": 9},
)
def autoretry_elsewhere(self: Task) -> Any:
    ran.append((self.request.retries, ()))
    return behaviours[0](self)


@shared_task(name="tests.takes", bind=True)
def takes(self: Task, a: int, b: int, c: int = 0, **more: Any) -> Any:
    ran.append((self.request.retries, tuple(self.request.args), self.request.kwargs))
    return behaviours[min(len(ran), len(behaviours)) - 1](self)


def raising(error: BaseException) -> Behaviour:
    def behaviour(_: Task) -> None:
        raise error

    return behaviour


def retrying(*args: Any, **options: Any) -> Behaviour:
    def behaviour(self: Task) -> None:
        raise self.retry(*args, **options)

    return behaviour


def sent(task: Any = do, **fields: Any) -> CallQueue:
    """Send a call that is admitted at once."""
    call = seen(CallQueue.objects.send(task, **fields))
    assert call.state == State.DISPATCHED
    return call


def deliver(call: CallQueue, ticket: UUID | None = None) -> EagerResult:
    """Run a call's message as a worker does, and return what Celery made of it."""
    call = seen(call)
    return call_task(call).apply(
        args=call.args,
        kwargs=call.kwargs,
        task_id=str(call.id),
        retries=call.attempt,
        headers={TICKET_HEADER: str(ticket or ticket_of(call))},
    )


def call_task(call: CallQueue) -> Task:
    return {task.name: task for task in (do, autoretry, autoretry_elsewhere, patient, takes)}[call.task]


def wake(call: CallQueue) -> list[UUID]:
    """Let the time of a call come that waits for its next attempt; return the calls that were dispatched."""
    count = CallQueue.objects.filter(id=call.id, state=State.RETRYABLE).update(scheduled_at=Now())
    assert schedule.wake_due() == count
    return go(call)
