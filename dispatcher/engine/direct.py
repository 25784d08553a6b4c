"""What a process does with the calls of direct queues: take them, end them, put them off, give them back."""

from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from time import monotonic
from typing import TypeAlias
from uuid import UUID

from dispatcher import ending, sql
from dispatcher.ending import Ending
from dispatcher.engine import attempt, dispenser
from dispatcher.errors import RateLimited
from dispatcher.lifecycle import claim, finish, heartbeat, run, take, wake
from dispatcher.lifecycle.finish import Ended, Requeue
from dispatcher.lifecycle.take import Start, Taken, Taker
from dispatcher.request import Changes

Handle: TypeAlias = tuple[UUID, UUID]
"""The call of a start, and its ticket, which is its claim, too."""


def step(
    taker: Taker,
    ends: Sequence[Ended] = (),
    *,
    room: int,
    is_marked: bool = False,
    may_rest: bool = False,
    begin: Callable[[Taken], object] = lambda taken: taken,
    report: Callable[[Callable[[], object]], object] = sql.after_commit,
) -> Taken:
    """Record how attempts ended, and start up to `room` calls, in one trip; then publish what it has dispatched.

    See `take.take`.
    """
    asked_at = monotonic()

    def observe(taken: Taken) -> None:
        claim.observe(taken.at, asked_at)
        begin(taken)

    taken = take.take(
        taker,
        ends,
        room=room,
        publish=dispenser.PUBLISH,
        is_marked=is_marked,
        may_rest=may_rest,
        begin=observe,
        report=report,
    )
    dispenser.serve(taken)
    return taken


def wake_another(queues: Collection[str]) -> None:
    """Wake an idle process of each of these queues."""
    with sql.together():
        wake.ask(queues=queues)


def record_apart(start: Start, ended: Ended) -> bool:
    """Record one end whose row the database refused together with others; its own failure, if that is refused, too.

    Return whether the end must be brought again, since another transaction has locked the call.
    """
    try:
        return bool(step(Taker(), [ended], room=0).locked)
    except sql.DATABASE_ERRORS as fault:
        if not sql.is_refused(fault):
            raise
        failed = ending.failed(fault, attempt=start.attempt, policy=start.retry)
        return bool(step(Taker(), [start.ended(failed)], room=0).locked)


def put_off(start: Start, wait: timedelta, key: str | None) -> None:
    """Let a call wait again whose provider asked to stop, and block its keys, or the named one; serve what it opens."""
    stopped = run.Stopped(error=RateLimited(wait), wait=wait, key=key)
    attempt.stop(start.call.id, start.call.ticket, stopped, claim_id=start.call.ticket)


def change(start: Start, ended: Ending, changes: Changes) -> None:
    """Record a failed attempt, and what the next one is made with; serve what it opens."""
    attempt.fail_and_change(start.ended(ended), changes)


def give_back(starts: Collection[Handle]) -> None:
    """Let calls that were started, and never ran, wait again; no attempt is spent."""
    if not starts:
        return
    with sql.own_transaction(lock_wait=finish.LOCK_WAIT):
        # In order of their ids, as all lock calls.
        found = [finish.requeue(call, ticket, Requeue.UNUSED, claim_id=ticket) for call, ticket in sorted(starts)]
    if any(each is not None for each in found):
        dispenser.dispense_briefly()


def started(worker: UUID) -> list[Handle]:
    """Return the calls that trips have started for a worker and whose ends are not recorded."""
    return [(each.call_id, each.ticket) for each in heartbeat.held(worker) if each.claim == each.ticket]
