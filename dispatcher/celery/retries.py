"""Retries that a task asks for: what `self.retry()` of a dispatched call takes, checked before anything is changed."""

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from celery import Signature, Task
from celery.app.task import Context
from celery.exceptions import MaxRetriesExceededError
from celery.utils.time import maybe_make_aware

from dispatcher import validate
from dispatcher.engine.compose import CALL_DATA_TASK
from dispatcher.errors import CallInvalid
from dispatcher.lifecycle import send
from dispatcher.lifecycle.run import RetryAsked
from dispatcher.messages.signature import leave_exchange
from dispatcher.models import CallQueue
from dispatcher.request import Changes

OPTIONS: Final = ("queue", "priority", "expires")
"""The options that a retry accepts in addition to arguments and times."""


def asked(
    task: Task,
    *,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    exc: BaseException | None,
    eta: datetime | None,
    countdown: float | None,
    max_retries: int | None,
    options: Mapping[str, Any],
) -> RetryAsked:
    """Return the retry that a running task asks for.

    Raises TypeError for an option that a waiting call can't have, or for arguments that the task does not take, and
    CallInvalid for a value that a call can't have.
    """
    options = dict(options)
    if not options.keys().isdisjoint(("exchange", "exchange_type")):
        own = CallQueue.objects.values_list("queue", flat=True).get(id=task.request.id)
        leave_exchange(options, getattr(options.get("queue"), "name", options.get("queue")) or own, task.app)
    if unknown := sorted(set(options) - set(OPTIONS)):
        message = (
            f"retry() got {unknown[0]!r}, which a call that waits in the database can't have; "
            f"give args, kwargs, exc, throw, eta, countdown, max_retries, {', '.join(OPTIONS)}."
        )
        raise TypeError(message)
    most = task.max_retries if max_retries is None else max_retries
    wait = timedelta(seconds=task.default_retry_delay if countdown is None else countdown)
    if eta is not None:
        wait = eta - (datetime.now(UTC) if eta.tzinfo else datetime.now())  # noqa: DTZ005 -- Celery allows naive
    may_retry = most is None or task.request.retries < most
    given = {"task_args": task.request.args, "task_kwargs": task.request.kwargs}
    spent = None if may_retry else MaxRetriesExceededError(f"{task.name} was tried {most + 1} times", **given)
    # Without a cause it is the exception that the task is handling.
    return RetryAsked(
        exc or spent or sys.exc_info()[1], wait, may_retry=may_retry, changes=_changes(task, args, kwargs, options)
    )


def _changes(
    task: Task, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None, options: Mapping[str, Any]
) -> Changes | None:
    arguments: dict[str, Any] = {}
    if args is not None or kwargs is not None:
        arguments = _arguments(task, args, kwargs)
    queue, priority, expires = (options.get(name) for name in OPTIONS)
    if queue is not None:
        queue = validate.name("queue", getattr(queue, "name", queue))
    if priority is not None:
        priority = validate.whole("priority", priority, -100, 100)
    changes = Changes(**arguments, queue=queue, priority=priority, **_expiry(task, expires))
    return None if changes == Changes() else changes


def _arguments(task: Task, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the next attempt's arguments as JSON."""
    if task.name == CALL_DATA_TASK:
        raise CallInvalid("args", "a call that was sent with call_data has no arguments to replace.")
    given = None if args is None else validate.sequence("args", args)
    again = _as_celery(task, given, validate.mapping("kwargs", kwargs))
    if task.typing and (check := getattr(task, "__header__", None)):
        check(*again.args, **again.kwargs)
    texts = {
        "args": validate.json_text("args", again.args, has_celerys=True),
        "kwargs": validate.json_text("kwargs", again.kwargs, has_celerys=True),
    }
    send.check_size(texts.values())
    return texts


def _as_celery(task: Task, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> Signature[Any]:
    """Return what Celery's own retry would send: what it keeps of the other arguments depends on its version."""
    given = {"args": task.request.args, "kwargs": task.request.kwargs}
    task.request_stack.push(Context(given, is_eager=True, called_directly=False, retries=-1))
    try:
        again: Signature[Any] = Task.retry(task, args, kwargs, throw=False).sig
    finally:
        task.request_stack.pop()
    return again


def _expiry(task: Task, expires: object) -> dict[str, Any]:
    """Return when the call expires: at a time, or so many seconds after its attempt has ended."""
    if expires is None:
        return {}
    if isinstance(expires, bool) or not isinstance(expires, int | float | timedelta | datetime):
        raise CallInvalid("expires", f"{expires!r} must be a datetime, or seconds as a number.")
    if isinstance(expires, datetime):
        return {"expires_at": validate.moment("expires", maybe_make_aware(expires, task.app.timezone))}
    try:
        return {"expires_in": expires if isinstance(expires, timedelta) else timedelta(seconds=expires)}
    except (OverflowError, ValueError):
        raise CallInvalid("expires", f"{expires!r} is past the calendar.") from None
