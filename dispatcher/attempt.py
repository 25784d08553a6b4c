"""One attempt of a call: claimed in time, finished as it ended, put back or given up for lost.

The parts of `engine.execute` and `engine.recover`, each composed of steps in `lifecycle`.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import assert_never
from uuid import UUID

from dispatcher import sql
from dispatcher.conf import conf
from dispatcher.lifecycle import admit, claim, control, finish, recover, run
from dispatcher.models import CallQueue
from dispatcher.states import State


def claim_in_time(call_id: UUID, ticket: UUID) -> claim.Claimed | claim.Refused:
    """Claim a call and wait for its start; a start that was overslept is given up for a later one."""
    claimed = claim.claim(call_id, ticket)
    tries = 1
    while isinstance(claimed, claim.Claimed) and not claim.is_in_time(claimed, tries=tries):
        claimed = claim.claim(call_id, ticket, is_late=True)
        tries += 1
    return claimed


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

    In this order: a pass, too, takes its lanes before its keys.
    """
    with sql.atomic():
        spent = admit.keys_of(call_id)
        stopped = [key for key, name in spent.items() if outcome.key in (None, name)]
        # A call that spends no key that could hold it back waits by itself.
        wait = None if stopped else outcome.wait
        released = finish.put_back(call_id, ticket, from_states=[State.DISPATCHED, State.ACTIVE], wait=wait)
        if released is not None:
            wake([released])
            control.block(outcome.wait, keys=stopped, names=[outcome.key] if outcome.key else [])
    return released


def put_back(call_id: UUID, ticket: UUID) -> finish.Released | None:
    """Let a call that was not started wait again."""
    with sql.atomic():
        released = finish.put_back(call_id, ticket, from_states=[State.DISPATCHED, State.ACTIVE])
        wake([released] if released else [])
    return released


def lost(call_id: UUID, ticket: UUID, error: BaseException, *, now: datetime | None = None) -> finish.Released | None:
    """Put a lost call back: without an attempt if it was never claimed, else as a failed one."""
    returned = finish.put_back(call_id, ticket, from_states=[State.DISPATCHED])
    if returned is not None:
        return returned
    row = CallQueue.objects.using(conf().database).filter(id=call_id, ticket=ticket).values("attempt", "retry").first()
    if row is None:
        return None
    return finish.fail(call_id, ticket, error=error, attempt=row["attempt"], policy=row["retry"], now=now)


def wake(back: Iterable[finish.Released]) -> None:
    """Wake the lanes of calls that wait again."""
    if lanes := {released.lane_id for released in back if released.state is State.AVAILABLE}:
        recover.wake(lanes)


def settle(outcome: run.Outcome, released: finish.Released) -> run.Outcome:
    """Return the outcome with the wait that the row says, so that Celery tells the same."""
    if isinstance(outcome, run.Failed):
        return run.Failed(error=outcome.error, wait=released.wait, may_retry=released.state is State.RETRYABLE)
    return outcome
