"""Failures that Celery's tracer does not report: of attempts that were cut off, and of tasks that raised Reject.

Where a message brought the call, Celery's main process reports them (celery.worker.request).
"""

import logging
from signal import Signals
from threading import Thread
from uuid import UUID

from billiard.einfo import ExceptionInfo
from billiard.exceptions import Terminated, TimeLimitExceeded
from celery import Celery, Task, signals, states
from celery.app.task import Context
from django.db import connections

from dispatcher.messages import message
from dispatcher.messages.message import Publishable

logger = logging.getLogger(__name__)


def report_soon(app: Celery, call: Publishable, error: BaseException, *, attempt: int, hostname: str) -> None:
    """Report the failure of a call that has ended, in a thread of its own: receivers may take long, or hang."""

    def work() -> None:
        # A new thread has no current app.
        app.set_current()
        try:
            report(app, call, error, attempt=attempt, hostname=hostname)
        finally:
            connections.close_all()

    Thread(target=work, name="dispatcher-failure", daemon=True).start()


def report(app: Celery, call: Publishable, error: BaseException, *, attempt: int, hostname: str) -> None:
    """Send `task_failure` for the last attempt of a call; call the task's own handlers where its time was up."""
    try:
        task, request = app.tasks[call.task], message.request(app, call, hostname)
        # That of a row counts the attempt that has ended, too.
        request["retries"] += attempt - 1 - call.attempt
        _call(task, Context(request), error)
    except Exception:
        # An unknown task, arguments that can't be read, or what a handler of the task raised.
        logger.exception("the failure of call %s could not be reported", call.id)


def revoke_soon(task: Task, call: UUID, error: Terminated, *, attempt: int, hostname: str) -> None:
    """Send `task_revoked` for an attempt that was terminated, in a thread of its own."""
    request = Context(id=str(call), task=task.name, retries=attempt - 1, hostname=hostname)
    facts = {"request": request, "terminated": True, "signum": Signals(*error.args), "expired": False}
    Thread(target=signals.task_revoked.send, args=(task,), kwargs=facts, name="dispatcher-revoked", daemon=True).start()


def reject(task: Task, request: Context, error: BaseException) -> None:
    """End a task for Celery that has rejected its message: nothing brings that again."""
    ignores = task.ignore_result if request.ignore_result is None else request.ignore_result
    keeps = not ignores or task.store_errors_even_if_ignored
    task.backend.mark_as_failure(request.id, error, request=request, store_result=keeps)
    _call(task, request, error)


def _call(task: Task, request: Context, error: BaseException) -> None:
    try:
        raise error  # noqa: TRY301 -- to be what Celery's receivers are given: with a traceback
    except BaseException:  # noqa: BLE001 -- it is that one
        einfo = ExceptionInfo()
    args, kwargs = request.args, request.kwargs
    task.request_stack.push(request)
    try:
        if isinstance(error, TimeLimitExceeded):
            task.on_failure(error, request.id, args, kwargs, einfo)
            task.after_return(states.FAILURE, error, request.id, args, kwargs, None)
        given = {"exception": error, "args": args, "kwargs": kwargs, "traceback": einfo.traceback, "einfo": einfo}
        signals.task_failure.send(sender=task, task_id=request.id, **given)
    finally:
        task.request_stack.pop()
