"""Ends: record how attempts ended, and let the next calls go with the room that they give back, in the same trip."""

import logging
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from time import monotonic, sleep
from uuid import UUID

from django.db import OperationalError
from psycopg.errors import LockNotAvailable

from dispatcher import ending, sql
from dispatcher.ending import InFlight
from dispatcher.engine import dispenser
from dispatcher.history import By
from dispatcher.lifecycle import claim, control, finish, schedule, take
from dispatcher.lifecycle.finish import Ended, Requeue
from dispatcher.lifecycle.take import Taker
from dispatcher.limits.policy import LONGEST_PERIOD
from dispatcher.models import RateLimitKey, Slot
from dispatcher.states import State

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.5
"""How long an end that another transaction keeps from being recorded waits before it is brought again."""


def record(ends: Sequence[Ended], *, queue: str | None = None, patience: timedelta | None = timedelta(0)) -> set[UUID]:
    """Record how attempts ended, each if its ticket and claim still hold the call; return the calls whose ends were.

    queue: whose calls a process is free for now: more of them go. What has room is published after the commit.
    patience: for how long to bring an end again whose call, or what else it needs, another transaction has locked; None
    is for ever, for calls alone. Raises OperationalError after that, as where a statement waits for a lock too long.
    """
    until = None if patience is None else monotonic() + patience.total_seconds()
    taker = Taker(queues=[] if queue is None else [queue], becomes=State.DISPATCHED)
    recorded, left, pause = set[UUID](), list(ends), _FIRST_PAUSE_S
    while left:
        try:
            taken = take.take(taker, left, room=dispenser.PUBLISH, publish=dispenser.PUBLISH)
            recorded.update(taken.ended)
            sql.after_commit(partial(dispenser.serve, taken, own=taker.queues, comes_again=False))
            left = [each for each in left if each.call_id in set(taken.locked)]
        except OperationalError as fault:
            if not sql.is_locked(fault) or until is None or sql.in_transaction():
                raise
        if left:
            if until is not None and monotonic() + pause > until:
                message = f"another transaction keeps calls locked: {', '.join(str(each.call_id) for each in left)}"
                raise OperationalError(message) from LockNotAvailable(message)
            sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
    return recorded


def requeue(calls: Iterable[InFlight], reason: Requeue, *, now: datetime | None = None) -> set[UUID]:
    """Let calls in flight wait again without an end of their own, and return those that do (see finish.requeue).

    What has room by that goes on after the commit, and so does a call of an unknown task whose worker has come since.
    """
    # In order of their ids, as all lock calls.
    if not (ordered := sorted(calls, key=lambda each: each.call_id)):
        return set()
    with sql.own_transaction(lock_wait=finish.LOCK_WAIT):
        found = {
            each.call_id: finish.requeue(each.call_id, each.ticket, reason, claim_id=each.claim, now=now)
            for each in ordered
        }
        requeued = {call: each for call, each in found.items() if each is not None}
        unknown = {each for each in requeued.values() if reason is Requeue.UNKNOWN and not each.is_known}

        def go_on() -> None:
            for each in unknown:
                schedule.wake_returned([each.queue], [each.task])
            dispenser.dispense_briefly()

        if requeued:
            sql.after_commit(go_on)
    return set(requeued)


def record_one(ended: Ended, *, queue: str | None = None, patience: timedelta | None = None) -> bool:
    """Record how an attempt ended; return whether its ticket still held the call.

    Where a crash of the database has lost its claim, that is recorded first.
    """
    if record([ended], queue=queue, patience=patience):
        return True
    with sql.own_transaction():
        is_restored = claim.restore(ended.call_id, ended.ticket, claim_id=ended.claim_id)
        return bool(is_restored and record([ended], queue=queue, patience=patience))


def stop(ended: Ended, *, by: By | None = None) -> bool:
    """Let the call wait again and block the keys that the provider stopped: both or neither, so nothing slips through.

    For 366 days at the most. Return whether the ticket still held the call. by: who reports it, for the history.
    """
    pause = min(ended.ending.wait or timedelta(0), LONGEST_PERIOD)
    with sql.own_transaction(lock_wait=finish.LOCK_WAIT):
        names, is_spent = _stopped_keys(ended.call_id, ended.ending.key)
        # A call that spends no key that could hold it back waits by itself.
        wait = None if is_spent else pause
        if finish.requeue(ended.call_id, ended.ticket, Requeue.STOPPED, claim_id=ended.claim_id, wait=wait) is None:
            return False
        control.block(pause, names=names, by=by)
        sql.after_commit(dispenser.dispense_briefly)
    return True


def _stopped_keys(call_id: UUID, named: str | None) -> tuple[Collection[str], bool]:
    """Return the names of the keys that a provider stops, and whether the call spends one: by default those it spends.

    Of groups the chosen keys alone: the provider refuses the account or address that the call used; others go on.
    """
    held = Slot.objects.filter(call=call_id, key__isnull=False, key__is_group=False)
    rows = list(held.values_list("key__name", "call__chosen_keys"))
    spent = {name for name, _ in rows}
    if named is not None and (named in spent or RateLimitKey.objects.filter(name=named).exists()):
        return [named], named in spent
    chosen = {name for _, keys in rows for name in (keys or {}).values()}
    stopped = spent & chosen if chosen else spent
    if named is not None:
        logger.warning(
            "RateLimited names the key %r, which does not exist; the call's own keys are blocked instead: %s",
            named,
            ", ".join(sorted(stopped)) or "it has none",
        )
    return stopped, bool(stopped)


def fail_unread(call_id: UUID, ticket: UUID, error: BaseException) -> bool:
    """Record a failed attempt of a call whose message can't be read; return whether the ticket still held the call."""
    with sql.own_transaction():
        claimed = claim.restore(call_id, ticket)
        if claimed is None:
            return False
        failed = ending.failed(error, attempt=claimed.attempt, policy=claimed.retry)
        return bool(record([Ended(call_id=call_id, ticket=ticket, claim_id=None, ending=failed)]))
