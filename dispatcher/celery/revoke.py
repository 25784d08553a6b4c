"""Revoke: Celery's `revoke` and `terminate` commands reach calls that wait in the database, too.

Every worker gets the command. The row is the truth from then on: the worker forgets the id, so that a call which a
person retries later is not discarded by what a worker remembers.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial, wraps
from typing import Any, Final
from uuid import UUID

from celery.utils.functional import maybe_list
from celery.worker import state as worker_state
from celery.worker.control import Panel

from dispatcher import engine, sql
from dispatcher.celery import heartbeat
from dispatcher.lifecycle import control, finish
from dispatcher.messages.tickets import uuid_of

COMMANDS = ("revoke", "terminate")
after_revoke: Final[list[Callable[[list[UUID], Mapping[str, Any]], object]]] = []
"""What is done once the rows say that calls were revoked: given these, and the command's arguments."""


def listen() -> None:
    """Let this worker's commands reach the calls that they name."""
    for name in COMMANDS:
        command = Panel.data[name]
        if not hasattr(command, "reaches_calls"):
            Panel.data[name] = _reaching_calls(command)


def revoke(ids: Iterable[UUID]) -> list[UUID]:
    """Cancel the calls that have not started, let no other attempt of those that run start; return those that exist."""
    with sql.own_transaction(lock_wait=finish.LOCK_WAIT):
        revoked = control.revoke(ids)
    if revoked.cancelled:
        engine.dispense_briefly()
    return revoked.calls


def cancel_if_revoked(call: UUID) -> None:
    """Cancel a call that was revoked while it ran, and whose attempt has ended, unless a person has retried it."""
    with sql.own_transaction(lock_wait=finish.LOCK_WAIT):
        cancelled = control.cancel([call], only_revoked=True)
    if cancelled:
        engine.dispense_briefly()


def forget(call: object) -> None:
    """Forget in this worker that an id was revoked."""
    # The consumer's thread may add one meanwhile.
    with suppress(RuntimeError):
        worker_state.revoked.discard(str(call))


def _reaching_calls(command: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(command)

    @wraps(command)
    def reaching(*args: Any, **kwargs: Any) -> Any:
        answer = command(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        ids = maybe_list(given["task_id"]) or []
        if calls := [call for each in ids if (call := uuid_of(str(each))) is not None]:
            heartbeat.in_background("cancel calls that were revoked", partial(_revoke, calls, given))
        return answer

    reaching.reaches_calls = True  # type: ignore[attr-defined]
    return reaching


def _revoke(ids: list[UUID], given: Mapping[str, Any]) -> None:
    for call in revoke(ids):
        forget(call)
    for work in after_revoke:
        work(ids, given)
