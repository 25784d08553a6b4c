"""Run one attempt of a call to its end: claim, run, and record the end."""

from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from dispatcher.engine import attempt
from dispatcher.lifecycle import claim, run
from dispatcher.models import CallQueue


def execute(
    call_id: UUID, ticket: UUID, task: Callable[[], Any], *, worker: UUID | None = None, claim_id: UUID | None = None
) -> run.Outcome | claim.Refused | None:
    """Claim, run, and record the end, with which the next calls go; return how the attempt ended.

    worker: who claims. claim_id: the claim's own; a new one by default. Where the database is unavailable, claim and
    end are tried again for the setting's patience; an end after every error but one of its own data.
    Refused: nothing was run. None: it ran, but its ticket was replaced meanwhile, and the outcome was dropped.
    """
    this = attempt.Attempt(call_id, ticket, claim_id=claim_id or uuid4(), worker=worker)
    return this.to_its_end(partial(_execute, this, task))


def _execute(this: attempt.Attempt, task: Callable[[], Any]) -> run.Outcome | claim.Refused | None:
    claimed = this.claim_call()
    if isinstance(claimed, claim.Refused):
        this.refuse(claimed)
        return claimed
    outcome = this.run_task(task)
    ended = this.record(outcome, claimed)
    return None if ended is None else attempt.settle(outcome, ended)


def is_held(call_id: UUID, ticket: UUID) -> bool:
    """Return whether this ticket still holds its call."""
    return CallQueue.objects.filter(id=call_id, ticket=ticket).exists()
