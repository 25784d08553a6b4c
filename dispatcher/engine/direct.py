"""What a process does with the calls of direct queues: take them, end them, give them back."""

from collections.abc import Callable, Collection, Sequence
from time import monotonic
from typing import TypeAlias
from uuid import UUID

from dispatcher import ending, sql
from dispatcher.ending import InFlight
from dispatcher.engine import dispenser, ends
from dispatcher.lifecycle import claim, heartbeat, take, wake
from dispatcher.lifecycle.finish import Ended, Requeue
from dispatcher.lifecycle.take import Start, Taken, Taker

Handle: TypeAlias = tuple[UUID, UUID]
"""The call of a start, and its ticket, which is its claim, too."""


def step(
    taker: Taker,
    ended: Sequence[Ended] = (),
    *,
    room: int,
    keys: Collection[int] = (),
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
        ended,
        room=room,
        publish=dispenser.PUBLISH,
        keys=keys,
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


def give_back(starts: Collection[Handle]) -> None:
    """Let calls that were started, and never ran, wait again; no attempt is spent."""
    ends.requeue([InFlight(call_id=call, ticket=ticket, claim=ticket) for call, ticket in starts], Requeue.UNUSED)


def started(worker: UUID) -> list[Handle]:
    """Return the calls that trips have started for a worker and whose ends are not recorded."""
    return [(each.call_id, each.ticket) for each in heartbeat.held(worker) if each.claim == each.ticket]
