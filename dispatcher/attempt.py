"""One attempt of a call: claimed in time, finished as it ended, put back or given up for lost.

The parts of `engine.execute` and `engine.recover`, each composed of steps in `lifecycle`.
"""

import logging
import random
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from functools import partial
from time import monotonic, sleep
from typing import TypeVar, assert_never
from uuid import UUID

from django.db import InterfaceError, OperationalError

from dispatcher import sql
from dispatcher.conf import conf
from dispatcher.errors import AttemptTimedOut, LeaseLapsed
from dispatcher.lifecycle import admit, claim, control, finish, recover, run
from dispatcher.models import CallQueue
from dispatcher.policy import LONGEST_PERIOD
from dispatcher.states import State

T = TypeVar("T")

logger = logging.getLogger(__name__)

AWAY = (OperationalError, InterfaceError)
"""What Django raises when the database is away, or has broken off."""
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 3.0


def claim_in_time(
    call_id: UUID, ticket: UUID, *, number: UUID, worker: UUID | None = None
) -> claim.Claimed | claim.Refused:
    """Claim a call by this number and wait for its start; a start that was overslept is given up for a later one."""
    mine = partial(claim.claim, call_id, ticket, number=number, worker=worker)
    claimed = patiently(mine, again=partial(_claim_again, mine))
    while isinstance(claimed, claim.Claimed) and not claim.is_in_time(claimed):
        # Twice the lateness with every try: a machine that is always late starts calls all the same.
        again = partial(mine, is_late=True, slack=claimed.lateness + claimed.slack)
        claimed = patiently(again, again=again)
    return claimed


def patiently(work: Callable[[], T], *, again: Callable[[], T]) -> T:
    """Do this; where the database is away, do `again` what is left of it, for as long as `patience` lasts.

    Raises what the database raised last. Within a caller's transaction there is nothing to be tried again.
    """
    until = monotonic() + conf().patience.total_seconds()
    pause = _FIRST_PAUSE_S
    while True:
        try:
            return work()
        except AWAY as fault:
            if sql.connection().in_atomic_block or monotonic() + pause > until:
                raise
            logger.warning("the database is away, trying again in %.1f s: %s", pause, fault)
        sql.connection().close()
        sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 -- so that not all come back at once
        pause = min(2 * pause, _LONGEST_PAUSE_S)
        work = again


def _claim_again(mine: Callable[..., claim.Claimed | claim.Refused]) -> claim.Claimed | claim.Refused:
    """Claim, though the first claim may have won and only its answer was lost."""
    claimed = mine()
    return mine(is_late=True) if claimed is claim.Refused.STALE else claimed


def finish_as(call_id: UUID, ticket: UUID, outcome: run.Outcome, claimed: claim.Claimed) -> finish.Released | None:
    """Record the outcome of a run; return what was released, None if the ticket was replaced meanwhile."""
    match outcome:
        case run.Returned():
            return finish.complete(call_id, ticket, result=outcome.result)
        case run.Ignored():
            return finish.complete(call_id, ticket, result=None)
        case run.Failed():
            return finish.fail(
                call_id,
                ticket,
                error=outcome.error,
                attempt=claimed.attempt,
                policy=claimed.retry,
                wait=outcome.wait,
                may_retry=outcome.may_retry,
            )
        case run.Stopped():
            return stop(call_id, ticket, outcome)
        case _:
            assert_never(outcome)


def stop(call_id: UUID, ticket: UUID, outcome: run.Stopped) -> finish.Released | None:
    """Let the call wait again and block the keys that the provider stopped: both or neither, so nothing slips through.

    For 366 days at the most. In this order: a pass, too, takes its lanes before its keys.
    """
    pause = min(outcome.wait, LONGEST_PERIOD)
    with sql.atomic():
        spent = admit.keys_of(call_id)
        stopped = [key for key, name in spent.items() if outcome.key in (None, name)]
        # A call that spends no key that could hold it back waits by itself.
        wait = None if stopped else pause
        released = finish.put_back(call_id, ticket, from_states=[State.DISPATCHED, State.ACTIVE], wait=wait)
        if released is not None:
            wake([released])
            control.block(pause, keys=stopped, names=[outcome.key] if outcome.key else [])
    return released


def put_back(call_id: UUID, ticket: UUID, *, number: UUID | None = None) -> finish.Released | None:
    """Let a call that was not started wait again; one that is claimed only for the claim of this number, if given."""
    with sql.atomic():
        released = finish.put_back(call_id, ticket, from_states=[State.DISPATCHED, State.ACTIVE], number=number)
        wake([released] if released else [])
    return released


def lost(
    call_id: UUID, ticket: UUID, error: BaseException, *, is_crash: bool, now: datetime | None = None
) -> finish.Released | None:
    """Put a lost call back: without an attempt if it was never started, else as a failed one.

    is_crash: its process went with it, so that it may be poison; else nobody knows, and its count stays as it is.
    """
    returned = finish.put_back(call_id, ticket, from_states=[State.DISPATCHED], is_lost=True, now=now)
    if returned is not None:
        return returned
    calls = CallQueue.objects.using(conf().database).filter(id=call_id, ticket=ticket)
    row = calls.values("attempt", "retry", "crashes").first()
    if row is None:
        return None
    return finish.fail(
        call_id,
        ticket,
        error=error,
        attempt=row["attempt"],
        policy=row["retry"],
        crashes=row["crashes"] + 1 if is_crash else None,
        now=now,
    )


def ran_out(left: recover.Overdue, *, now: datetime | None = None) -> finish.Released | None:
    """End the attempt of a fetched call whose lease, or time, ran out; without a wait in the first case."""
    row = CallQueue.objects.using(conf().database).filter(id=left.call_id).values("attempt", "retry").get()
    return finish.fail(
        left.call_id,
        left.ticket,
        error=AttemptTimedOut("it ran for longer than its timeout")
        if left.is_timeout
        else LeaseLapsed("nobody said in time that it still runs"),
        attempt=row["attempt"],
        policy=row["retry"],
        wait=None if left.is_timeout else timedelta(0),
        crashes=None,
        now=now,
    )


def wake(back: Iterable[finish.Released]) -> None:
    """Wake the lanes of calls that wait again."""
    if lanes := {released.lane_id for released in back if released.state is State.AVAILABLE}:
        recover.wake(lanes)


def settle(outcome: run.Outcome, released: finish.Released) -> run.Outcome:
    """Return the outcome with the wait that the row says, so that Celery tells the same."""
    if isinstance(outcome, run.Failed):
        return run.Failed(error=outcome.error, wait=released.wait, may_retry=released.state is State.RETRYABLE)
    return outcome
