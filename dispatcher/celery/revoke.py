"""Revoke: calls that wait are cancelled, and what a worker remembers of it gives way to the row.

The row is the truth: the worker forgets the id, so that a call which a person retries later is not discarded by what a
worker remembers.
"""

from collections.abc import Iterable
from contextlib import suppress
from uuid import UUID

from billiard.exceptions import Terminated
from celery.worker import state as worker_state

from dispatcher import engine, sql
from dispatcher.ending import InFlight
from dispatcher.lifecycle import control, finish


def revoke(ids: Iterable[UUID]) -> None:
    """Cancel the calls that have not started, let no other attempt of those that run start."""
    with sql.own_transaction(lock_wait=finish.LOCK_WAIT):
        revoked = control.revoke(ids)
    if revoked.cancelled:
        engine.dispense_briefly()
    for call in revoked.calls:
        forget(call)


def lose(gone: InFlight, error: BaseException, *, is_crash: bool) -> None:
    """End the attempt of a lost process; cancel a call that was revoked meanwhile, unless a person has retried it."""
    engine.lose([gone], error, is_crash=is_crash)
    if not isinstance(error, Terminated):
        return
    with sql.own_transaction(lock_wait=finish.LOCK_WAIT):
        cancelled = control.cancel([gone.call_id], only_revoked=True)
    if cancelled:
        engine.dispense_briefly()


def forget(call: UUID) -> None:
    """Forget in this worker that an id was revoked."""
    # The consumer's thread may add one meanwhile.
    with suppress(RuntimeError):
        worker_state.revoked.discard(str(call))
