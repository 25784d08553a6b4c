"""Calls that a feed has started, one by one: put off, changed, started again, given back."""

from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta
from functools import partial
from uuid import UUID

from dispatcher import ending, sql
from dispatcher.ending import Ending
from dispatcher.engine import attempt, dispenser
from dispatcher.engine.feed import LEAD, Handle, Start, Taker
from dispatcher.errors import RateLimited
from dispatcher.lifecycle import claim, finish, heartbeat, run
from dispatcher.lifecycle.finish import Ended
from dispatcher.request import Changes


def put_off(start: Start, wait: timedelta, key: str | None) -> None:
    """Let a call wait again whose provider asked to stop, and block its keys, or the named one; serve what it opens."""
    stopped = run.Stopped(error=RateLimited(wait), wait=wait, key=key)
    _hand_over(attempt.stop(start.call.id, start.call.ticket, stopped, claim_id=start.claimed.claim_id))


def change(start: Start, ended: Ending, changes: Changes) -> None:
    """Record a failed attempt, and what the next one is made with; serve what it opens."""
    call = start.call
    fail = partial(finish.record, call.id, call.ticket, ended, claim_id=start.claimed.claim_id)
    _hand_over(attempt.fail_and_change(call.id, fail, changes))


def _hand_over(released: finish.Released | None) -> None:
    if released is not None:
        dispenser.hand_over(released.keys, released.lane_id)


def restart(start: Start, taker: Taker) -> Start | None:
    """Give a call whose start was missed another one; None if it may not start now: then it waits again."""
    call, missed = start.call, start.claimed
    again = claim.restart(
        call.id,
        call.ticket,
        claim_id=missed.claim_id,
        worker=taker.worker,
        slack=max(missed.lateness + missed.slack, taker.delay),
        missed=missed.slack,
        lead=LEAD + taker.delay,
    )
    if isinstance(again, claim.Claimed):
        return replace(start, claimed=again)
    give_back([start.handle])
    return None


def record_apart(start: Start, ended: Ended) -> None:
    """Record one end whose row the database refused together with others; its own failure, if that is refused, too."""
    call, number = start.call, start.claimed.claim_id
    try:
        _hand_over(finish.record(call.id, call.ticket, ended.ending, claim_id=number))
    except sql.DATABASE_ERRORS as fault:
        if not sql.is_refused(fault):
            raise
        failed = ending.failed(fault, attempt=start.claimed.attempt, policy=start.claimed.retry)
        _hand_over(finish.record(call.id, call.ticket, failed, claim_id=number))


def give_back(starts: Collection[Handle]) -> None:
    """Let calls that were started, and never ran, wait again; no attempt is spent."""
    with sql.atomic():
        # In order of their ids, as all lock calls.
        found = [attempt.put_back(call, ticket, claim_id=claimed) for call, ticket, claimed in sorted(starts)]
    released = [each for each in found if each is not None]
    if released:
        keys = {key for each in released for key in each.keys}
        dispenser.dispense_briefly(lanes={each.lane_id for each in released}, keys=keys)


def give_back_unknown(worker: UUID, known: Collection[UUID], calls: Collection[UUID] = ()) -> int:
    """Let calls wait again that were started for a worker by a step whose answer was lost; return how many.

    known: the claims of those that it has. calls: those whose messages it has from the broker.
    """
    lost = [
        (each.call_id, each.ticket, each.claim)
        for each in heartbeat.held(worker)
        if each.claim is not None and each.claim not in known and each.call_id not in calls
    ]
    give_back(lost)
    return len(lost)
