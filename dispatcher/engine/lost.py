"""Lost attempts: their process is gone.

The parts of `engine.recover`, each composed of steps in `lifecycle`.
"""

import logging
from datetime import datetime
from uuid import UUID

from dispatcher import sql
from dispatcher.conf import conf
from dispatcher.engine import attempt
from dispatcher.errors import WorkerLost
from dispatcher.lifecycle import finish, heartbeat, recover, unstarted
from dispatcher.models import CallQueue
from dispatcher.states import State

logger = logging.getLogger(__name__)


def put_back(
    call_id: UUID,
    ticket: UUID,
    error: BaseException,
    *,
    is_crash: bool,
    claim_id: UUID | None = None,
    now: datetime | None = None,
) -> finish.Released | None:
    """Put a lost call back: without an attempt if it was never started, else as a failed one.

    is_crash: its process went with it, so that it may be poison; else the cause is unknown, and its count is unchanged.
    claim_id: the claim of what was lost; an attempt of another claim goes on. Without one, any attempt is lost.
    """
    returned = unstarted.put_back(call_id, ticket, is_lost=True, claim_id=claim_id, now=now)
    if returned is not None:
        return finish.Released(state=returned.state, lane_id=returned.lane_id, keys=returned.keys)
    calls = CallQueue.objects.using(conf().database).filter(id=call_id, ticket=ticket)
    row = calls.values("attempt", "retry", "crashes", "is_revoked").first()
    if row is None:
        return None
    if row["is_revoked"] and not is_crash:
        return finish.terminate(call_id, ticket, error=error, attempt=row["attempt"], claim_id=claim_id, now=now)
    return finish.fail(
        call_id,
        ticket,
        error=error,
        attempt=row["attempt"],
        policy=row["retry"],
        crashes=row["crashes"] + 1 if is_crash else None,
        claim_id=claim_id,
        now=now,
    )


def put_back_expired(*, until: datetime, now: datetime | None = None) -> list[finish.Released]:
    """Put back the calls whose leases were over by a time, or whose workers are gone; return what was freed."""
    for worker in heartbeat.lose_silent(now=until):
        logger.warning("worker %s fell silent, and counts as lost", worker.name)
    silent = WorkerLost("its worker fell silent for longer than a lease")
    with sql.atomic():
        found = [
            put_back(call.call_id, call.ticket, silent, is_crash=True, now=now) for call in recover.expired(now=until)
        ]
        found += [
            finish.put_back(call.call_id, call.ticket, from_states=[State.DISPATCHED])
            for call in recover.unserved(now=until)
        ]
        attempt.wake(found)
    return [released for released in found if released is not None]
