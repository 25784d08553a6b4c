"""Results: what Celery's result backend shows of calls that ended in the database alone.

A call that was cancelled, expired, was dropped or lost never comes to the code of Celery that stores its result, so its
AsyncResult would stay PENDING. The dispenser stores the result of such calls a little later, in the order in which they
ended and for a bounded time at a stretch. The database stays the truth: a backend that fails harms nothing else.
"""

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import Lock, Thread
from time import monotonic
from typing import Any, Final
from uuid import UUID

from celery import Celery, current_app, states
from django.db import connections

from dispatcher import sql
from dispatcher.errors import WorkerLost
from dispatcher.models import ResultCursor
from dispatcher.states import Reason, State

logger = logging.getLogger(__name__)

_FIRST_ID: Final = UUID(int=0)
_BATCH: Final = 200
_BUDGET_S: Final = 2.0
"""How long one round writes to the backend."""
_REST_S: Final = 60.0
"""How long a backend that failed is left alone."""
_OLDEST: Final = timedelta(days=1)
"""What ended longer ago is not stored any more."""
_UNSEEN: Final = timedelta(minutes=1)
_UNSENT: Final = ("disabled://", "rpc://")
"""Backends that store nothing, or only for the sender that waits at a queue of its own."""


class _Round:
    """One round at a time in a process, and until when a backend that failed is left alone."""

    lock: Final = Lock()
    rests_until = 0.0


@dataclass(frozen=True, kw_only=True)
class _Ended:
    id: UUID
    task: str
    state: str
    reason: str | None
    message: str | None
    finished_at: datetime


def report_soon() -> None:
    """Store the results that are due, in a thread of their own: the caller does not wait for the backend."""
    if is_wanted() and monotonic() >= _Round.rests_until and not _Round.lock.locked():
        # A new thread has no current app.
        app = current_app._get_current_object()  # noqa: SLF001 -- Celery's name for the app itself
        Thread(target=_report_as, args=(app,), name="dispatcher-results", daemon=True).start()


def is_wanted() -> bool:
    """Whether there is a result backend that any process may read."""
    return not current_app.backend.as_uri().startswith(_UNSENT)


def report(*, budget: float = _BUDGET_S) -> int:
    """Store the results of calls that ended since the last round, for so many seconds; return how many were stored."""
    if not is_wanted() or not _Round.lock.acquire(blocking=False):
        return 0
    until = monotonic() + budget
    stored = 0
    try:
        while (found := _next()) and monotonic() < until:
            stored += sum(_store(call) for call in found)
            _advance(found[-1].finished_at, found[-1].id)
    except Exception:
        # Each backend has errors of its own; the place in the order is kept, and the round goes on from there.
        _Round.rests_until = monotonic() + _REST_S
        logger.warning("the result backend failed; results are stored again in %.0f s", _REST_S, exc_info=True)
    finally:
        _Round.lock.release()
    return stored


def _report_as(app: Celery) -> None:
    app.set_current()
    try:
        report()
    finally:
        connections.close_all()


def _next() -> list[_Ended]:
    """Return the calls whose results are stored next; those that ended before the first round are not."""
    (settled_at,) = sql.fetch("settled_at", datetime, {"unseen": _UNSEEN, "tables": ["dispatcher_callqueue"]})
    rows = ResultCursor.objects
    cursor, is_new = rows.get_or_create(id=1, defaults={"finished_at": settled_at, "call_id": _FIRST_ID})
    if is_new:
        return []
    after, after_id = cursor.finished_at, cursor.call_id
    if after < settled_at - _OLDEST:
        after, after_id = settled_at - _OLDEST, _FIRST_ID
    params = {"after": after, "after_id": after_id, "until": settled_at, "most": _BATCH}
    found = sql.fetch("unreported_results", _Ended, params)
    if not found:
        _advance(settled_at, _FIRST_ID)
    return found


def _advance(finished_at: datetime, call_id: UUID) -> None:
    rows = ResultCursor.objects.filter(id=1, finished_at__lte=finished_at)
    rows.update(finished_at=finished_at, call_id=call_id)


def _store(call: _Ended) -> bool:
    """Store the result of a call, if its task keeps results and none that is final is there."""
    task = current_app.tasks.get(call.task)
    ignores = getattr(task, "ignore_result", None)
    if current_app.conf.task_ignore_result if ignores is None else ignores:
        return False
    backend: Any = current_app.backend if task is None else task.backend
    if backend.get_state(str(call.id)) in states.READY_STATES:
        return False
    match call.state, call.reason:
        case State.CANCELLED, _:
            backend.mark_as_revoked(str(call.id), "cancelled")
        case _, Reason.FAILED | Reason.POISON:
            backend.mark_as_failure(str(call.id), WorkerLost(call.message or call.reason))
        case _, reason:
            backend.mark_as_revoked(str(call.id), reason)
    return True
