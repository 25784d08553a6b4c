"""Run one attempt of a call to its end: claim, run, finish, and hand the room on."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from dispatcher import sql
from dispatcher.conf import conf
from dispatcher.engine import attempt, release
from dispatcher.engine.dispenser import dispense_briefly, hand_over
from dispatcher.lifecycle import claim, finish, run
from dispatcher.models import CallQueue

logger = logging.getLogger(__name__)


def execute(
    call_id: UUID, ticket: UUID, task: Callable[[], Any], *, worker: UUID | None = None, claim_id: UUID | None = None
) -> run.Outcome | claim.Refused | None:
    """Claim, run, finish, and hand the room on; return how the attempt ended.

    worker: who claims. claim_id: the claim's own; a new one by default. Where the database is unavailable, claim and
    finish are tried again for the setting's patience; a finish after every error but one of its own data.
    Refused: nothing was run. None: it ran, but its ticket was replaced meanwhile, and the outcome was dropped.
    """
    this = attempt.Attempt(call_id, ticket, claim_id=claim_id or uuid4(), worker=worker)
    return this.to_its_end(partial(_execute, this, task))


def _execute(this: attempt.Attempt, task: Callable[[], Any]) -> run.Outcome | claim.Refused | None:
    claimed = this.claim_call()
    if isinstance(claimed, claim.Refused):
        if (returned := this.refuse(claimed)) is not None:
            dispense_briefly(lanes=[returned.lane_id], keys=returned.keys)
        return claimed
    outcome = this.run_task(task)
    done = this.record(outcome, claimed)
    if done.released is None:
        return None
    try:
        release.serve(done)
    except Exception as error:
        if sql.is_interruption(error):
            raise
        # The outcome is recorded, and stands; the sweep of the next tick admits the next calls.
        logger.exception("failed to release capacity after call %s; the sweep will retry", this.call_id)
    return attempt.settle(outcome, done.released)


def fail(call_id: UUID, ticket: UUID, error: BaseException) -> bool:
    """Record a failed attempt that never ran its task; return whether the ticket still held the call."""
    row = CallQueue.objects.using(conf().database).filter(id=call_id, ticket=ticket).values("attempt", "retry").first()
    if row is None:
        return False
    released = finish.fail(call_id, ticket, error=error, attempt=row["attempt"] + 1, policy=row["retry"])
    if released is not None:
        hand_over(released.keys, released.lane_id)
    return released is not None


def is_held(call_id: UUID, ticket: UUID) -> bool:
    """Return whether this ticket still holds its call."""
    return CallQueue.objects.using(conf().database).filter(id=call_id, ticket=ticket).exists()
