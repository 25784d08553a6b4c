"""Put back the calls of processes that are gone, and free what they held."""

import logging
from datetime import datetime
from uuid import UUID

from dispatcher.engine import lost
from dispatcher.engine.dispenser import dispense
from dispatcher.engine.lost import Lost
from dispatcher.extension import registered
from dispatcher.lifecycle import publish, retention
from dispatcher.lifecycle import recover as recovery

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
        put_back = lost.lose_expired(until=until, now=now)
        reclaimed = registered().reclaim(now=now, until=until)
        publish.publish(publish.to_repeat(now=now, until=until), now=now)
    if put_back:
        logger.warning("calls put back, as their leases had run out or no worker serves them: %d", put_back)
    if freed.slots or put_back or reclaimed:
        dispense()
    return put_back


def lose(
    call_id: UUID,
    ticket: UUID,
    error: BaseException,
    *,
    is_crash: bool,
    claim_id: UUID | None = None,
    now: datetime | None = None,
) -> bool:
    """End an attempt whose process is known to be gone; return whether the ticket still held the call.

    is_crash: the process broke down, and was not ended on purpose. claim_id: the claim of that process; an attempt of
    another claim goes on.
    """
    gone = Lost(call_id=call_id, ticket=ticket, claim_id=claim_id)
    return lost.lose([gone], error, is_crash=is_crash, now=now) > 0
