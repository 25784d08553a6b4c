"""Lost attempts: their process is gone.

The parts of `engine.recover`, each composed of steps in `lifecycle`.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from dispatcher import ending, sql
from dispatcher.engine import dispenser, ends
from dispatcher.errors import WorkerLost
from dispatcher.lifecycle import finish, heartbeat, recover
from dispatcher.lifecycle.finish import Ended, Requeue
from dispatcher.models import CallQueue

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Lost:
    """A call whose process is gone."""

    call_id: UUID
    ticket: UUID
    claim_id: UUID | None = None
    """The claim of what was lost; an attempt of another claim goes on. None: any attempt is lost."""


def lose(lost: Sequence[Lost], error: BaseException, *, is_crash: bool, now: datetime | None = None) -> int:
    """Put lost calls back: without an attempt if one was never started, else as a failed one; return how many.

    is_crash: its process went with it, so that it may be poison; else the cause is unknown, and its count is unchanged.
    What has room by that goes on after the commit.
    """
    with sql.own_transaction(lock_wait=finish.LOCK_WAIT):
        # In order of id, as all lock calls.
        lost = sorted(lost, key=lambda each: each.call_id)
        requeued = [each for each in lost if _requeue(each, now=now)]
        failed = [_failed(each, error, is_crash=is_crash) for each in lost if each not in requeued]
        recorded = ends.record([each for each in failed if each is not None])
        if requeued:
            sql.after_commit(dispenser.dispense_briefly)
    return len(requeued) + len(recorded)


def _requeue(lost: Lost, *, now: datetime | None) -> bool:
    return finish.requeue(lost.call_id, lost.ticket, Requeue.LOST, claim_id=lost.claim_id, now=now) is not None


def _failed(lost: Lost, error: BaseException, *, is_crash: bool) -> Ended | None:
    calls = CallQueue.objects.filter(id=lost.call_id, ticket=lost.ticket)
    row = calls.values("attempt", "retry", "crashes", "is_revoked").first()
    if row is None:
        return None
    if row["is_revoked"] and not is_crash:
        ended = ending.terminated(error, attempt=row["attempt"])
    else:
        crashes = row["crashes"] + 1 if is_crash else None
        ended = ending.failed(error, attempt=row["attempt"], policy=row["retry"], crashes=crashes)
    return Ended(call_id=lost.call_id, ticket=lost.ticket, claim_id=lost.claim_id, ending=ended)


def lose_expired(*, until: datetime, now: datetime | None = None) -> int:
    """Put back the calls whose leases were over by a time, or whose workers are gone; return how many."""
    for worker in heartbeat.lose_silent(now=until):
        logger.warning("worker %s fell silent, and counts as lost", worker.name)
    silent = WorkerLost("its worker fell silent for longer than a lease")
    with sql.own_transaction(lock_wait=finish.LOCK_WAIT):
        expired = [Lost(call_id=each.call_id, ticket=each.ticket) for each in recover.expired(now=until)]
        count = lose(expired, silent, is_crash=True, now=now)
        unserved = recover.unserved(now=until)
        return count + put_back((each.call_id, each.ticket) for each in unserved)


def put_back(messages: Iterable[tuple[UUID, UUID]]) -> int:
    """Let calls wait again whose messages no worker has any more, and which have not started; return how many."""
    with sql.own_transaction(lock_wait=finish.LOCK_WAIT):
        found = [finish.requeue(call, ticket, Requeue.UNDELIVERED) for call, ticket in sorted(messages)]
        count = len([each for each in found if each is not None])
        if count:
            sql.after_commit(dispenser.dispense_briefly)
    return count
