"""Attempts that Celery's tracer does not report: those that were cut off, and those of tasks that raised Reject."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from signal import Signals
from threading import Thread
from uuid import UUID

from billiard.einfo import ExceptionInfo
from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery import Celery, Task, signals, states
from celery.app.task import Context
from celery.exceptions import Retry
from celery.utils.saferepr import saferepr
from django.db import connections

from dispatcher.celery import results, revoke
from dispatcher.ending import InFlight
from dispatcher.messages import message
from dispatcher.messages.message import Publishable
from dispatcher.models import CallQueue
from dispatcher.states import State

logger = logging.getLogger(__name__)

SendEvent = Callable[..., object]
"""Sends an event of a call to monitors: its kind, such as `task-failed`, and its fields."""


def lose(app: Celery, gone: InFlight, error: BaseException, *, hostname: str, send_event: SendEvent) -> None:
    """End the attempt of a process that is gone, and report it: as a retry if another attempt follows.

    gone: with its claim. What has ended for good is stored with the next results.
    """
    revoke.lose(gone, error, is_crash=isinstance(error, WorkerLostError))
    results.report_soon(app)
    for call in CallQueue.objects.filter(id=gone.call_id, claim=gone.claim).exclude(ticket=gone.ticket):
        ended = call.attempt == (call.error or {}).get("attempt") and call.state != State.CANCELLED
        if (ended or call.state == State.COMPLETED) and not isinstance(error, Terminated):
            what = WorkerLostError(repr(error)) if isinstance(error, SystemExit) else error
            _soon(app, partial(_report_lost, app, call, what, hostname=hostname, send_event=send_event))


def _report_lost(app: Celery, call: CallQueue, error: BaseException, *, hostname: str, send_event: SendEvent) -> None:
    if call.state == State.COMPLETED:
        # Its process may have been lost between the record of its end and Celery's.
        with _logged(call):
            task, request = app.tasks[call.task], Context(message.request(app, call, hostname))
            is_stored = results.is_wanted() and _stores_errors(task, request)
            if is_stored and task.backend.get_state(request.id) not in states.READY_STATES:
                reject(task, request, error)
        return
    is_last = call.state == State.DISCARDED
    report(app, call, error, is_last=is_last, attempt=call.attempt, hostname=hostname, send_event=send_event)


def _soon(app: Celery, work: Callable[[], object]) -> None:
    """Do this in a thread of its own: receivers may take long, or hang."""

    def work_as() -> None:
        # A new thread has no current app.
        app.set_current()
        try:
            work()
        finally:
            connections.close_all()

    Thread(target=work_as, name="dispatcher-failure", daemon=True).start()


def report(
    app: Celery,
    call: Publishable,
    error: BaseException,
    *,
    is_last: bool,
    attempt: int,
    hostname: str,
    send_event: SendEvent,
) -> None:
    """Report an attempt that was cut off to monitors and receivers: as a failure, or as one that another follows.

    The result of the last one is stored by `results`, with what waits for it.
    """
    send_event("task-failed" if is_last else "task-retried", exception=saferepr(error), traceback="")
    with _logged(call):
        task, request = app.tasks[call.task], message.request(app, call, hostname)
        # That of a row counts the attempt that has ended, too.
        request["retries"] += attempt - 1 - call.attempt
        (_fail if is_last else _retry)(task, Context(request), error)


@contextmanager
def _logged(call: Publishable) -> Iterator[None]:
    try:
        yield
    except Exception:
        # An unknown task, arguments that can't be read, the result backend, or what a handler of the task raised.
        logger.exception("the failure of call %s could not be reported", call.id)


def revoke_soon(
    task: Task, call: UUID, error: Terminated, *, attempt: int, hostname: str, send_event: SendEvent
) -> None:
    """Report an attempt that was terminated; its receivers are called in a thread of their own."""
    send_event("task-revoked", terminated=True, signum=str(error), expired=False)
    request = Context(id=str(call), task=task.name, retries=attempt - 1, hostname=hostname)
    facts = {"request": request, "terminated": True, "signum": Signals(*error.args), "expired": False}
    Thread(target=signals.task_revoked.send, args=(task,), kwargs=facts, name="dispatcher-revoked", daemon=True).start()


def reject(task: Task, request: Context, error: BaseException) -> None:
    """End a task for Celery that has rejected its message: nothing brings that again."""
    task.backend.mark_as_failure(request.id, error, request=request, store_result=_stores_errors(task, request))
    _fail(task, request, error)


def _stores_errors(task: Task, request: Context) -> bool:
    ignores = task.ignore_result if request.ignore_result is None else request.ignore_result
    return bool(not ignores or task.store_errors_even_if_ignored)


def _fail(task: Task, request: Context, error: BaseException) -> None:
    einfo, args, kwargs = _info_of(error), request.args, request.kwargs
    with _current(task, request):
        if isinstance(error, TimeLimitExceeded):
            task.on_failure(error, request.id, args, kwargs, einfo)
            task.after_return(states.FAILURE, error, request.id, args, kwargs, None)
        given = {"exception": error, "args": args, "kwargs": kwargs, "traceback": einfo.traceback, "einfo": einfo}
        signals.task_failure.send(sender=task, task_id=request.id, **given)


def _retry(task: Task, request: Context, error: BaseException) -> None:
    """Do what Celery does with `retry_on_worker_lost`."""
    einfo = _info_of(error)
    if _stores_errors(task, request):
        task.backend.mark_as_retry(request.id, error, einfo.traceback, request=request)
    with _current(task, request):
        task.on_retry(error, request.id, request.args, request.kwargs, einfo)
        signals.task_retry.send(sender=task, request=request, reason=Retry(exc=error), einfo=einfo)


def _info_of(error: BaseException) -> ExceptionInfo:
    try:
        raise error  # noqa: TRY301 -- to be what Celery's receivers are given: with a traceback
    except BaseException:  # noqa: BLE001 -- it is that one
        return ExceptionInfo()


@contextmanager
def _current(task: Task, request: Context) -> Iterator[None]:
    task.request_stack.push(request)
    try:
        yield
    finally:
        task.request_stack.pop()
