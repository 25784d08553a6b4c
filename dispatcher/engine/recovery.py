"""Put back the calls of processes that are gone, and free what they held."""

import logging
from collections.abc import Iterable
from datetime import datetime

from dispatcher import ending, sql
from dispatcher.ending import InFlight
from dispatcher.engine import dispenser, ends
from dispatcher.errors import WorkerLost
from dispatcher.extension import registered
from dispatcher.lifecycle import finish, heartbeat, publish, retention
from dispatcher.lifecycle import recover as recovery
from dispatcher.lifecycle.finish import Ended, Requeue
from dispatcher.models import CallQueue

logger = logging.getLogger(__name__)


class _Sweep:
    """Where this process's next look at slots without a call goes on."""

    slot = 0


def recover(*, now: datetime | None = None) -> int:
    """Put back the calls whose leases ran out or whose workers are gone; return how many.

    It also trims the starts and the shares of fair keys, and frees the slots of calls that were deleted. What it frees
    leaves notes, which are read once at the end.

    A call that was never started goes back without spending an attempt; one that may just stand in a line at the broker
    is published again. Leases are not judged just after a time in which the database was away (see
    lifecycle.recover.judged_until), unless the caller names the time.
    """
    retention.trim_starts(now=now)
    retention.trim_shares()
    registered().recover(now=now)
    freed = recovery.free_orphans(after=_Sweep.slot, now=now)
    _Sweep.slot = freed.last
    if freed.slots:
        logger.warning("slots freed, as their calls were deleted or are not in flight: %d", freed.slots)
    put_back = reclaimed = 0
    if (until := now or recovery.judged_until()) is not None:
        put_back = lose_expired(until=until, now=now)
        reclaimed = registered().reclaim(now=now, until=until)
        publish.publish(publish.to_repeat(now=now, until=until), now=now)
    if put_back:
        logger.warning("calls put back, as their leases had run out or no worker serves them: %d", put_back)
    if freed.slots or put_back or reclaimed:
        dispenser.dispense()
    return put_back


def lose(lost: Iterable[InFlight], error: BaseException, *, is_crash: bool, now: datetime | None = None) -> int:
    """Put back calls whose process is gone, as a failed attempt if it had started; return how many.

    Of a call with a claim only that attempt is lost. is_crash: the process broke down, and was not ended on purpose, so
    that the call may be poison. What has room by that goes on after the commit: the trip that records the ends is a
    transaction of its own, since it has keys locked.
    """
    gone = [*lost]
    requeued = ends.requeue(gone, Requeue.LOST, now=now)
    started = sorted((each for each in gone if each.call_id not in requeued), key=lambda each: each.call_id)
    failed = [_failed(each, error, is_crash=is_crash) for each in started]
    return len(requeued) + len(ends.record([each for each in failed if each is not None]))


def _failed(lost: InFlight, error: BaseException, *, is_crash: bool) -> Ended | None:
    calls = CallQueue.objects.filter(id=lost.call_id, ticket=lost.ticket)
    row = calls.values("attempt", "retry", "crashes", "is_revoked").first()
    if row is None:
        return None
    if row["is_revoked"] and not is_crash:
        ended = ending.terminated(error, attempt=row["attempt"])
    else:
        crashes = row["crashes"] + 1 if is_crash else None
        ended = ending.failed(error, attempt=row["attempt"], policy=row["retry"], crashes=crashes)
    return Ended(call_id=lost.call_id, ticket=lost.ticket, claim_id=lost.claim, ending=ended)


def lose_expired(*, until: datetime, now: datetime | None = None) -> int:
    """Put back the calls whose leases were over by a time, or whose workers are gone; return how many."""
    for worker in heartbeat.lose_silent(now=until):
        logger.warning("worker %s fell silent, and counts as lost", worker)
    silent = WorkerLost("its worker fell silent for longer than a lease")
    with sql.own_transaction(lock_wait=finish.LOCK_WAIT):
        count = lose(recovery.expired(now=until), silent, is_crash=True, now=now)
    with sql.own_transaction(lock_wait=finish.LOCK_WAIT):
        return count + len(ends.requeue(recovery.unserved(now=until), Requeue.UNDELIVERED))
