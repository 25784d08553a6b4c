"""Results: what Celery's result backend shows of calls that ended in the database alone.

A call that was cancelled, expired, was dropped or lost never comes to the code of Celery that ends its task: its
AsyncResult would stay PENDING, its chord would never close, and its error callbacks would not run. The dispenser ends
such calls there a little later, whatever has ended them, in the order in which they ended and for a bounded time at a
stretch. The database stays the truth: a backend that fails harms nothing else.
"""

import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain, takewhile
from threading import Thread
from time import monotonic
from typing import Any, ClassVar, Final
from uuid import UUID

from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery import Celery, Task, current_app, states
from celery.app.task import Context
from celery.backends.rpc import RPCBackend
from celery.exceptions import TaskRevokedError
from django.db import connections

from dispatcher import sql
from dispatcher.errors import WorkerLost
from dispatcher.messages import message
from dispatcher.messages.message import Admitted
from dispatcher.models import ResultCursor
from dispatcher.sql import faults
from dispatcher.states import Reason, State

logger = logging.getLogger(__name__)

_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?")
_FIRST_ID: Final = UUID(int=0)
_BATCH: Final = 200
_BUDGET_S: Final = 2.0
"""How long one round writes to the backend."""
_REST_S: Final = 60.0
"""How long a backend that failed is left alone."""
_UNSTORED_S: Final = 10.0
"""How long after a round the next one is without a backend: few calls have error callbacks, and each round connects."""
_OLDEST: Final = timedelta(days=1)
"""What ended longer ago is not stored any more."""
_UNSEEN: Final = timedelta(minutes=1)
_UNSENT: Final = ("disabled://", "rpc://")
"""Backends that store nothing, or only for the sender that waits at a queue of its own."""


class _Round:
    """The thread of the latest round, and until when there is none."""

    thread: ClassVar[Thread | None] = None
    rests_until = 0.0


@dataclass(frozen=True, kw_only=True)
class _Ended(Admitted):
    ticket: UUID | None  # type: ignore[assignment]  # It has none any more.
    state: str
    reason: str | None
    error: dict[str, Any] | None
    finished_at: datetime


def report_soon(app: Celery | None = None) -> None:
    """Store the results that are due, in a thread of their own: the caller does not wait for the backend."""
    if monotonic() >= _Round.rests_until and not (_Round.thread and _Round.thread.is_alive()):
        # A new thread has no current app.
        app = app or current_app._get_current_object()  # noqa: SLF001 -- Celery's name for the app itself
        _Round.thread = Thread(target=_report_as, args=(app,), name="dispatcher-results", daemon=True)
        _Round.thread.start()


def is_wanted() -> bool:
    """Whether there is a result backend that any process may read."""
    return not current_app.backend.as_uri().startswith(_UNSENT)


def report(*, budget: float = _BUDGET_S) -> int:
    """End the calls for Celery that ended since the last round, for so many seconds; return how many were."""
    until, stored, is_backends = monotonic() + budget, 0, False
    try:
        with _alone() as due:
            for call in takewhile(lambda _: monotonic() < until, due):
                is_backends = True
                stored += _end(call)
                is_backends = False
                _advance(call.finished_at, call.id)
        if not is_wanted():
            _Round.rests_until = monotonic() + _UNSTORED_S
    except Exception as error:
        # Each backend has errors of its own; the place in the order is kept, and the round goes on from there.
        if is_backends:
            _Round.rests_until = monotonic() + _REST_S
            logger.warning("the result backend failed; results are stored again in %.0f s", _REST_S, exc_info=True)
        else:
            words = faults.in_words(error)
            text = "the database of the calls failed; results are stored with the next recovery: %s"
            logger.warning(text, words or error, exc_info=words is None)
    return stored


def _report_as(app: Celery) -> None:
    app.set_current()
    try:
        report()
    finally:
        connections.close_all()


@contextmanager
def _alone() -> Iterator[Iterable[_Ended]]:
    """Give the calls whose results are due to one process at a time, and none to the others.

    Its lock is in a transaction that writes nothing: one that waits for a slow backend keeps no row from VACUUM.
    """
    own = sql.connection()
    with closing(sql.new_connection()) as apart, sql.using(apart), sql.atomic():
        (is_first,) = sql.fetch("lock_results", bool, {})
        with sql.using(own):
            yield chain.from_iterable(iter(_next, [])) if is_first else ()


def _next() -> list[_Ended]:
    """Return the calls whose results are stored next; those that ended over a minute before the first round are not."""
    (settled_at,) = sql.fetch("settled_at", datetime, {"unseen": _UNSEEN, "tables": ["dispatcher_callqueue"]})
    rows = ResultCursor.objects
    first = {"finished_at": settled_at - _UNSEEN, "call_id": _FIRST_ID}
    cursor, _ = rows.get_or_create(id=1, defaults=first)
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


def _end(call: _Ended) -> bool:
    """End a call for Celery as a failed task, once: its result, its chord, what is chained to it, its error callbacks.

    Not if its task keeps no result and nothing waits for it, nor where its result is final already.
    """
    task: Task | None = current_app.tasks.get(call.task)
    backend: Any = current_app.backend if task is None else task.backend
    request, is_shared = _request_of(call), is_wanted()
    # A result that no other process may read is sent to an address, which calls of existing tasks have.
    is_addressed = isinstance(backend, RPCBackend) and "reply_to" in (call.options or {})
    keeps = (is_shared or is_addressed) and not _ignores_result(call, task)
    if not keeps and not (request.chord or request.chain or request.errbacks):
        return False
    if keeps and is_shared and backend.get_state(str(call.id)) in states.READY_STATES:
        return False
    state, error = _state_of(call)
    try:
        backend.mark_as_failure(str(call.id), error, request=request, store_result=keeps, state=state)
    except Exception:
        if keeps and is_shared and backend.get_state(str(call.id)) not in states.READY_STATES:
            raise
        # Not the backend, but what waited for the call; the next round would not do better.
        logger.warning("what waited for call %s could not be ended", call.id, exc_info=True)
    return True


def _request_of(call: _Ended) -> Context:
    """Return the request of its message; of one that can't be read, the id alone."""
    try:
        request = message.request(current_app._get_current_object(), call)  # noqa: SLF001 -- as above
        return Context(request | {"retries": max(call.attempt - 1, 0)})
    except Exception:  # noqa: BLE001 -- that may be what has ended it
        return Context(id=str(call.id), task=call.task, delivery_info={})


def _ignores_result(call: _Ended, task: Task | None) -> bool:
    given = ((call.options or {}).get("ignore_result"), getattr(task, "ignore_result", None))
    return bool(next((each for each in given if each is not None), current_app.conf.task_ignore_result))


def _state_of(call: _Ended) -> tuple[str, Exception]:
    """Return what Celery makes of its end."""
    error = call.error or {}
    match call.state, call.reason:
        case State.CANCELLED, _ if error.get("type") == Terminated.__name__:
            return states.REVOKED, TaskRevokedError("terminated")
        case State.CANCELLED, _:
            return states.REVOKED, TaskRevokedError("cancelled")
        case _, Reason.FAILED if error.get("type") == TimeLimitExceeded.__name__:
            # Its text is that of its arguments.
            return states.FAILURE, TimeLimitExceeded(*map(float, _NUMBER.findall(error.get("message") or "")))
        case _, Reason.FAILED | Reason.POISON if error.get("type") in {WorkerLostError.__name__, SystemExit.__name__}:
            return states.FAILURE, WorkerLostError(error.get("message"))
        case _, Reason.FAILED | Reason.POISON:
            return states.FAILURE, WorkerLost(error.get("message") or call.reason)
        case _, reason:
            return states.REVOKED, TaskRevokedError(reason)
