"""The tasks of the trial: each notes its begin before all else, and asks the witness only while the call is its own."""

import os
import signal
import time
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Never
from uuid import UUID

from celery import Task, shared_task

from dispatcher.errors import RateLimited
from dispatcher.messages.tickets import TICKET_HEADER
from project.shop import third_party
from trials import notes
from trials.chaos import fault_points

PROMPT = timedelta(seconds=1)
"""How long after its start a request may be sent that only a concurrency limits: the lease has time to spare then."""
A_QUERY = timedelta(milliseconds=10)
"""What may pass while the database is asked. A start that must be kept better than that is judged by the clock alone:
its lease holds for longer."""


class Trouble(Exception):
    """Raised by a task that fails, as some do."""


@shared_task(bind=True)
def visit(
    self: Task, *, keys: Sequence[str], seconds: float, most_late: float | None = None, failures: int = 0
) -> None:
    """Ask the witness for something; `failures` times it fails before that.

    most_late: seconds after its start when the limits no longer allow the request.
    """
    begin(self)
    if self.request.retries < failures:
        message = f"failure {self.request.retries + 1} of {failures}"
        raise Trouble(message)
    ask(self, keys=keys, seconds=seconds, most_late=PROMPT if most_late is None else timedelta(seconds=most_late))


@shared_task(bind=True)
def be_rate_limited(self: Task, *, keys: Sequence[str], seconds: float) -> None:
    """Raise RateLimited at every other start."""
    begin(self)
    if ticket_of(self).int % 2:
        stop(self, seconds=0.2)
    ask(self, keys=keys, seconds=seconds, most_late=PROMPT)


@shared_task(bind=True)
def poison(self: Task) -> None:
    """Kill the process, every time."""
    begin(self)
    os.kill(os.getpid(), signal.SIGKILL)


def begin(task: Task) -> None:
    """Note that an attempt has begun, and how its message read; this is the first thing that any task does."""
    request = task.request
    message = {"task": task.name, "kwargs": request.kwargs, "queue": request.delivery_info["routing_key"]}
    notes.write(_path(), "begin", call=request.id, ticket=str(ticket_of(task)), retries=request.retries, **message)


def ask(task: Task, *, keys: Sequence[str], seconds: float, most_late: timedelta) -> None:
    """Ask the witness, if the ticket still owns the call and the start is not long ago.

    A process can be frozen, or its database silent, between its start and here: the provider must not see what
    was meant for another moment. What happens after this look and before the request can't be prevented: the witness
    gets the time of it.
    """
    if most_late >= A_QUERY:
        task.ensure_held()
    set_out = time.monotonic_ns()
    if (by := fault_points.since_start(set_out)) > most_late:
        notes.write(_path(), "late", call=task.request.id, by=by.total_seconds())
        stop(task, seconds=0.02)
    try:
        third_party.ask("chaos", keys=list(keys), call=task.request.id, seconds=seconds, set_out=set_out)
    except RateLimited:
        notes.write(_path(), "refused", call=task.request.id, keys=keys)
        _note_stop(task)
        raise


def stop(task: Task, *, seconds: float) -> Never:
    """Let the call wait again; no attempt is spent."""
    _note_stop(task)
    raise RateLimited(seconds)


def ticket_of(task: Task) -> UUID:
    """Return the ticket of the attempt that runs."""
    headers = task.request.headers or {}
    return UUID(headers.get(TICKET_HEADER) or task.request.get(TICKET_HEADER))


def _note_stop(task: Task) -> None:
    notes.write(_path(), "stop", call=task.request.id, ticket=str(ticket_of(task)))


@cache
def _path() -> Path:
    return notes.directory() / notes.BEGINS
