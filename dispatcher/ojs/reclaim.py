"""Reclaim: end the attempts of fetched calls whose lease, or time, ran out."""

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta

from dispatcher import sql
from dispatcher.conf import conf
from dispatcher.engine import attempt
from dispatcher.engine.dispenser import serve
from dispatcher.errors import AttemptTimedOut, LeaseLapsed
from dispatcher.lifecycle import finish
from dispatcher.lifecycle.recover import ExpiredLease, judged_until
from dispatcher.models import CallQueue
from dispatcher.states import State

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ExpiredFetch(ExpiredLease):
    """A fetched call whose lease expired."""

    is_timeout: bool
    """Its attempt has used up the time that it has."""
    is_confirmed: bool
    """Its worker has sent a heartbeat or progress for it."""


def reclaim(*, until: datetime | None = None, now: datetime | None = None) -> int:
    """End the attempts of calls that were fetched over HTTP and whose lease, or time, ran out; return how many.

    until: their leases were over by then; by default as `recover` judges them, or `now` if that is given.
    """
    until = until or now or _overdue_until()
    if until is None:
        return 0
    with sql.atomic():
        overdue = sql.fetch("lock_overdue", ExpiredFetch, {"now": until, "most": conf().batch})
        ended = [_end(left, now=now) for left in {left.call_id: left for left in overdue}.values()]
        released = [each for each in ended if each is not None]
        attempt.wake(released)
    if released:
        logger.warning("fetched calls put back, as their leases had run out: %d", len(released))
        serve(released, now=now)
    return len(released)


def _overdue_until() -> datetime | None:
    """Return by when the lease of a fetched call must have been over to be judged; None if none is over, or may be."""
    (is_due,) = sql.fetch("find_overdue", bool, {"wait": 2 * conf().heartbeat})
    return judged_until() if is_due else None


def _end(left: ExpiredFetch, *, now: datetime | None = None) -> finish.Released | None:
    """End the attempt of a fetched call whose lease, or time, ran out; without a wait in the first case.

    Where its worker sent nothing since the fetch, the answer to that may be lost: no attempt is spent, less than
    `poison_after` times in a row. The caller wakes an available call's lane in the same transaction.
    """
    row = CallQueue.objects.using(conf().database).filter(id=left.call_id).values("attempt", "retry", "crashes").get()
    if not (left.is_timeout or left.is_confirmed) and row["crashes"] + 1 < conf().poison_after:
        return finish.put_back(left.call_id, left.ticket, from_states=[State.ACTIVE], is_lost=True, now=now)
    return finish.fail(
        left.call_id,
        left.ticket,
        error=AttemptTimedOut("it ran for longer than its timeout")
        if left.is_timeout
        else LeaseLapsed("lease expired without a heartbeat"),
        attempt=row["attempt"],
        policy=row["retry"],
        wait=None if left.is_timeout else timedelta(0),
        now=now,
    )
