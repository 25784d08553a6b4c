"""Reclaim: end the attempts of fetched calls whose lease, or time, ran out."""

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from dispatcher import ending, sql
from dispatcher.conf import conf
from dispatcher.ending import InFlight
from dispatcher.engine import dispenser
from dispatcher.lifecycle import finish, take
from dispatcher.lifecycle.finish import Ended, Requeue
from dispatcher.lifecycle.recover import judged_until
from dispatcher.lifecycle.take import Taker
from dispatcher.ojs.errors import AttemptTimedOut, LeaseLapsed

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ExpiredFetch(InFlight):
    """A fetched call whose lease expired."""

    is_timeout: bool
    """Its attempt has used up the time that it has."""
    is_confirmed: bool
    """Its worker has sent a heartbeat or progress for it."""
    attempt: int
    retry: dict[str, Any] | None
    crashes: int


def reclaim(*, until: datetime | None = None, now: datetime | None = None) -> int:
    """End the attempts of calls that were fetched over HTTP and whose lease, or time, ran out; return how many.

    until: their leases were over by then; by default as `recover` judges them, or `now` if that is given.
    """
    until = until or now or _overdue_until()
    if until is None:
        return 0
    with sql.atomic():
        overdue = sql.fetch("lock_overdue", ExpiredFetch, {"now": until, "most": conf().batch})
        each = {left.call_id: left for left in overdue}.values()
        silent = [left for left in each if _is_spared(left)]
        for left in silent:
            finish.requeue(left.call_id, left.ticket, Requeue.SILENT, now=now)
        ends = [_ended(left) for left in each if left not in silent]
        taken = take.take(Taker(), ends, publish=dispenser.PUBLISH) if each else None
    if taken is not None:
        logger.warning("fetched calls put back, as their leases had run out: %d", len(each))
        dispenser.serve(taken)
    return len(each)


def _overdue_until() -> datetime | None:
    """Return by when the lease of a fetched call must have been over to be judged; None if none is over, or may be."""
    (is_due,) = sql.fetch("find_overdue", bool, {"wait": 2 * conf().heartbeat})
    return judged_until() if is_due else None


def _is_spared(left: ExpiredFetch) -> bool:
    """Return whether no attempt is spent.

    Where its worker sent nothing since the fetch, the answer to that may be lost: less than `poison_after` times in a
    row.
    """
    return not (left.is_timeout or left.is_confirmed) and left.crashes + 1 < conf().poison_after


def _ended(left: ExpiredFetch) -> Ended:
    """Return how the attempt ends; without a wait if its lease ran out."""
    error = (
        AttemptTimedOut("it ran for longer than its timeout")
        if left.is_timeout
        else LeaseLapsed("lease expired without a heartbeat")
    )
    wait = None if left.is_timeout else timedelta(0)
    decided = ending.failed(error, attempt=left.attempt, policy=left.retry, wait=wait)
    return Ended(call_id=left.call_id, ticket=left.ticket, claim_id=None, ending=decided)
