"""Fetch: workers in any language fetch calls, in one transaction that admits and claims them.

A fetched call has a lease and is fenced by its ticket (see worker_reports).
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from time import monotonic
from uuid import UUID

from dispatcher import engine, sql
from dispatcher.engine import attempt
from dispatcher.lifecycle import admit, claim, feed, finish, schedule
from dispatcher.messages.message import Admitted
from dispatcher.models import CallQueue
from dispatcher.ojs import jobs, pull_workers, steps
from dispatcher.ojs.long_poll import WAITERS, find_ready_queues
from dispatcher.states import Delivery

_STEPS = 50
"""How many plain steps one fetch makes in a queue."""
_AT_LIMIT_S = 1.0
"""How often a waiting worker looks again that holds as much of a key as one worker may."""
_PASSES = 20
"""How many passes one fetch makes over a queue whose lanes turn out to be limited."""


@dataclass(frozen=True, kw_only=True)
class FetchRequest:
    """A request for calls: of which queues, how many at most, and how long it may wait.

    lease: how long a call counts as running without a heartbeat; None: the call's own, or the setting's.
    """

    queues: Sequence[str]
    worker: str | None = None
    count: int = 1
    lease: timedelta | None = None
    wait: timedelta = timedelta(0)
    who: Hashable = None
    """The credentials: of waiting requests with the same ones, `is_allowed` is called once."""
    is_allowed: Callable[[], bool] = lambda: True
    """Whether the credentials still allow the fetch; called before each further read, and by the polling thread."""


def fetch(request: FetchRequest) -> list[CallQueue]:
    """Start calls for a worker and return them: queue by queue in the given order, without those that a limit stops.

    A worker with the directive `quiet` gets none, and a queue that Celery serves gives none.
    """
    if request.worker is not None and pull_workers.touch_worker(request.worker, queues=request.queues) != "running":
        return []
    until = monotonic() + request.wait.total_seconds()
    reached: set[int] = set()
    calls = _fetch_now(request, reached)
    while not calls and (left := until - monotonic()) > 0:
        # A worker at its limit of a key looks again now and then: one of its own calls may have ended.
        left = min(left, _AT_LIMIT_S) if reached else left
        is_ready = WAITERS.wait(request.who, request.queues, left, request.is_allowed, avoid=reached)
        if not (is_ready or reached) or not request.is_allowed():
            break
        reached = set()
        calls = _fetch_now(request, reached)
    return calls


def _fetch_now(request: FetchRequest, reached: set[int]) -> list[CallQueue]:
    """Start calls; add to `reached` the keys of which the worker holds as much as one worker may."""
    taken: list[CallQueue] = []
    # Lanes that another fetch has locked are skipped first, and waited for if there is nothing else.
    for waits in (False, True):
        queues = request.queues
        if waits or len(queues) > 1:
            queues = [queue.name for queue in find_ready_queues(queues, most=request.count, avoid=reached)]
        for queue in queues:
            if len(taken) < request.count:
                taken += _fetch_from(queue, request.count - len(taken), request, reached, waits=waits)
        if taken or not queues:
            break
    return taken


def _fetch_from(queue: str, most: int, request: FetchRequest, reached: set[int], *, waits: bool) -> list[CallQueue]:
    """Start up to `most` calls of one queue; waits: for its first lane, if that is locked."""
    taken: list[CallQueue] = []
    step = partial(steps.step, queue, worker=_worker_of(request), lease=request.lease, waits=waits)
    done = step(most=most, avoid=reached)
    reached.update(done.reached)
    if done.is_due:
        schedule.wake_due([queue])
        done = step(most=most, avoid=reached, after=done)
        reached.update(done.reached)
    taken += done.calls
    for _ in range(_STEPS):
        if len(taken) >= most or not done.has_moved:
            break
        done = step(most=most - len(taken), avoid=reached, after=done)
        reached.update(done.reached)
        taken += done.calls
    if done.has_left and len(taken) < most:
        taken += _fetch_by_passes(queue, most - len(taken), request, reached, waits=waits)
    return taken


def _fetch_by_passes(
    queue: str, most: int, request: FetchRequest, reached: set[int], *, waits: bool
) -> list[CallQueue]:
    """Start up to `most` calls of one queue by passes, which settle what a plain step has left."""
    taken: list[UUID] = []
    avoid = {*reached}
    awake = [lane for ready in find_ready_queues([queue], most=most, avoid=reached) for lane in ready.awake]
    for _ in range(_PASSES):
        waited: sql.Asked[feed.LockedLane] | None = None
        with sql.own_transaction():
            if waits:
                waited = feed.wait_for_lane(queue)
            made = admit.admit(
                lanes=awake,
                queues=[queue],
                most=most - len(taken),
                avoid=avoid,
                stuck=reached,
                delivery=Delivery.HTTP,
                worker=_worker_of(request),
            )
            taken += _claim(made.calls, request)
        # Lanes of a key that stays locked must not take the places of others again.
        found = {*made.busy, *made.allocation.reached}
        is_new = not avoid.issuperset(found)
        avoid.update(found)
        reached.update(made.allocation.reached)
        again = admit.recheck(made)
        if again.lanes or again.keys:
            engine.dispense_briefly(lanes=again.lanes, keys=again.keys)
        if waited is not None and not made.has_moved:
            steps.leave(waited.rows())
        if len(taken) >= most or not (made.has_moved or is_new):
            break
    return jobs.read(taken)


def _claim(admitted: Sequence[Admitted], request: FetchRequest) -> list[UUID]:
    """Claim the admitted calls, in the same transaction; a call that may not start waits again."""
    worker = _worker_of(request)
    started: dict[UUID, UUID] = {}
    for call in admitted:
        # The ticket is the claim: the row still has it when the report of the end is repeated.
        match claim.claim(call.id, call.ticket, claim_id=call.ticket, worker=worker, lead=timedelta(0)):
            case claim.Claimed():
                started[call.id] = call.ticket
            case claim.Refused.EXPIRED:
                finish.expire(call.id, call.ticket)
            case claim.Refused.REVOKED:
                attempt.cancel(call.id)
            case _:
                attempt.put_back(call.id, call.ticket)
    if started:
        steps.set_leases(started, worker, request.lease)
    return list(started)


def _worker_of(request: FetchRequest) -> UUID | None:
    return None if request.worker is None else pull_workers.worker_id(request.worker)
