"""Fetch: workers in any language fetch calls, report their results, and send heartbeats.

A fetch admits and claims calls in one transaction, with the same statements as any other start. A fetched call has a
lease and is fenced by its ticket: a late report, or another worker's, changes nothing.
"""

import logging
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import Any, TypedDict, Unpack
from uuid import UUID, uuid5

from dispatcher import api, engine, event_log, sql
from dispatcher.conf import conf
from dispatcher.ending import Reported
from dispatcher.engine import attempt, fetched
from dispatcher.event_log import Entry
from dispatcher.history import By
from dispatcher.lifecycle import admit, claim, feed, finish, run, schedule
from dispatcher.messages.message import Admitted
from dispatcher.models import CallQueue, PullWorker, Slot
from dispatcher.ojs.long_poll import WAITERS, find_ready_queues
from dispatcher.states import Delivery, State

logger = logging.getLogger(__name__)

_NAMES = UUID("6f1d2c52-5c0e-5bfb-9d0c-0d9b2f0b8a11")
"""The namespace of worker ids, which are derived from worker names."""
_STEPS = 50
"""How many plain steps one fetch makes in a queue."""
_AT_LIMIT_S = 1.0
"""How often a waiting worker looks again that holds as much of a key as one worker may."""
_PASSES = 20
"""How many passes one fetch makes over a queue whose lanes turn out to be limited."""


@dataclass(frozen=True, kw_only=True)
class RejectedReport:
    """A report that changed nothing: the call is in this state (None: there is none), or another worker holds it."""

    state: State | None
    is_anothers: bool = False


@dataclass(frozen=True, kw_only=True)
class HeartbeatResult:
    """The worker's directive (running, quiet, terminate), and the calls whose leases a heartbeat renewed."""

    directive: str
    kept: Sequence[UUID]


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of a call, from 0 to 1; `content` is JSON text."""

    progress: float
    message: str | None = None
    content: str | None = None


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
    if request.worker is not None and touch_worker(request.worker, queues=request.queues) != "running":
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


class Proof(TypedDict, total=False):
    """What proves that a report is about the current attempt; a report without any proof is accepted.

    Only the ticket is new at each fetch. An attempt that is not counted leaves its number to the next one, so a report
    with a number needs the worker's name, too, unless the call was fetched without a name.
    """

    ticket: UUID | None
    worker: str | None
    attempt: int | None


@dataclass(frozen=True, kw_only=True)
class ReservedCall:
    """A call and the workers that hold it: None is a worker without a name; empty if it runs in Celery."""

    id: UUID
    queue: str
    state: str
    ticket: UUID | None
    claim: UUID | None
    attempt: int
    retry: dict[str, Any] | None
    holders: list[UUID | None]


def find(call: UUID) -> ReservedCall | None:
    """Return a call as a report needs it; None if it does not exist."""
    return next(iter(sql.fetch_checked("find_reserved_call", ReservedCall, {"call": call})), None)


def ack(call: UUID | ReservedCall, *, result: object, **proof: Unpack[Proof]) -> CallQueue | RejectedReport:
    """Record that a fetched call is completed, and release its capacity.

    A repeated report with the same ticket changes nothing and returns the call.
    """

    def complete(row: ReservedCall, ticket: UUID) -> finish.Released | None:
        return finish.complete(row.id, ticket, result=result, claim_id=row.claim)

    return _end_attempt(call, proof, complete, (State.COMPLETED,))


def nack(
    call: UUID | ReservedCall,
    error: Reported,
    *,
    may_retry: bool | None = None,
    **proof: Unpack[Proof],
) -> CallQueue | RejectedReport:
    """Record that an attempt failed: the call is retried by its policy, or ends.

    may_retry: False ends it.
    """

    def fail(row: ReservedCall, ticket: UUID) -> finish.Released | None:
        policy = row.retry if row.retry is not None else conf().retry
        what = partial(finish.fail, error=error, attempt=row.attempt, policy=policy, may_retry=may_retry)
        return what(row.id, ticket, claim_id=row.claim, is_by_claim=True)

    return _end_attempt(call, proof, fail, (State.RETRYABLE, State.AVAILABLE, State.DISCARDED))


def report_rate_limit(
    call: UUID | ReservedCall, wait: timedelta, *, key: str | None = None, by: By | None = None, **proof: Unpack[Proof]
) -> CallQueue | RejectedReport:
    """Block the call's keys, or one of them, for this long; the call waits again, and its attempt is not counted.

    At least one second. by: the actor, for the history.
    """
    wait = max(wait, run.SHORTEST_STOP)
    stopped = run.Stopped(error=RuntimeError("the provider said stop"), wait=wait, key=key)

    def put_off(row: ReservedCall, ticket: UUID) -> finish.Released | None:
        return attempt.stop(row.id, ticket, stopped, claim_id=row.claim, by=by)

    return _end_attempt(call, proof, put_off, (State.AVAILABLE, State.SCHEDULED))


def requeue(call: UUID | ReservedCall, **proof: Unpack[Proof]) -> CallQueue | RejectedReport:
    """Return a fetched call that its worker cannot run to the front of its lane; its attempt is not counted."""

    def put_back(row: ReservedCall, ticket: UUID) -> finish.Released | None:
        return attempt.put_back(row.id, ticket, claim_id=row.claim, is_by_claim=True)

    reported = _end_attempt(call, proof, put_back, (State.AVAILABLE,))
    if isinstance(reported, CallQueue) and reported.lane_id is not None:
        engine.dispense_briefly(lanes=[reported.lane_id])
    return reported


def cancel(call: UUID) -> CallQueue | RejectedReport:
    """Cancel a call, also a fetched one that runs: its worker is informed by the response to its next report.

    A call that runs in Celery is not changed: its process cannot be informed.
    """
    if api.cancel([call]):
        return _get(call)
    return _end_attempt(call, {}, lambda row, ticket: finish.cancel(row.id, ticket))


def heartbeat(
    worker: str, calls: Iterable[UUID], *, lease: timedelta | None = None, state: str | None = None
) -> HeartbeatResult:
    """Record that a worker is alive and still runs these calls; return its directive."""
    directive = touch_worker(worker, state=state)
    params = {
        "calls": list(calls),
        "worker": worker_id(worker),
        "lease": lease,
        "usual": conf().visibility,
        "now": None,
    }
    kept = sql.fetch("renew_fetch_leases", UUID, params) if params["calls"] else []
    if event_log.is_kept():
        event_log.note([*_heartbeat_events(worker, kept)])
    return HeartbeatResult(directive=directive, kept=kept)


def _heartbeat_events(worker: str, calls: Sequence[UUID]) -> Iterator[Entry]:
    held = Slot.objects.using(conf().database).filter(call__in=calls, pulled_until__isnull=False)
    for slot in held.order_by("call").distinct("call").select_related("call"):
        data: dict[str, Any] = {"job_id": str(slot.call.id), "job_type": slot.call.task, "worker_id": worker}
        data |= {"attempt": slot.call.attempt, "visible_until": slot.pulled_until and slot.pulled_until.isoformat()}
        yield Entry(kind="job.heartbeat", queue=slot.call.queue, data=data)


def record_progress(call: UUID, reached: Progress, **proof: Unpack[Proof]) -> dict[str, Any] | RejectedReport | None:
    """Store the progress of a running call and return it; None if the call does not run.

    The lease is renewed only with the ticket or the worker's name: a worker that gives neither may have lost the call
    to another, whose lease must expire if it sends no heartbeats.
    """
    ticket, nth, worker = proof.get("ticket"), proof.get("attempt"), proof.get("worker")
    name = None if worker is None else worker_id(worker)
    held = {"ticket": ticket, "attempt": nth, "worker": name}
    with sql.atomic():
        kept = sql.fetch("store_progress", dict, {"call": call, **held, **asdict(reached)})
        if kept and (ticket or name):
            _renew_lease(call, [holder for holder in _holders(call) if ticket or holder == name])
    if kept:
        return kept[0]
    if not any(held.values()) or _get(call).state != State.ACTIVE:
        return None
    return RejectedReport(state=State.ACTIVE, is_anothers=bool(_holders(call)))


def set_directive(worker: str, directive: str) -> bool:
    """Set the directive that a worker gets with its next heartbeat; return whether the worker is known."""
    known = PullWorker.objects.using(conf().database).filter(id=worker_id(worker))
    return known.update(directive=directive) == 1


def touch_worker(worker: str, *, queues: Sequence[str] | None = None, state: str | None = None) -> str:
    """Record that a worker is alive; return its directive: running, quiet or terminate."""
    params = {
        "worker": worker_id(worker),
        "name": worker,
        "queues": None if queues is None else list(queues),
        "state": state,
    }
    (directive,) = sql.fetch("touch_pull_worker", str, params)
    return directive


def worker_id(worker: str) -> UUID:
    """Return the id of a worker's name."""
    return uuid5(_NAMES, worker)


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
    step = partial(fetched.step, queue, worker=_worker_of(request), lease=request.lease, waits=waits)
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
            fetched.leave(waited.rows())
        if len(taken) >= most or not (made.has_moved or is_new):
            break
    return fetched.read(taken)


def _claim(admitted: Sequence[Admitted], request: FetchRequest) -> list[UUID]:
    """Claim the admitted calls, in the same transaction; a call that may not start waits again."""
    worker = _worker_of(request)
    started = []
    for call in admitted:
        # The ticket is the claim: the row still has it when the report of the end is repeated.
        match claim.claim(call.id, call.ticket, claim_id=call.ticket, worker=worker, lead=timedelta(0)):
            case claim.Claimed():
                started.append(call.id)
            case claim.Refused.EXPIRED:
                finish.expire(call.id, call.ticket)
            case claim.Refused.REVOKED:
                attempt.cancel(call.id)
            case _:
                attempt.put_back(call.id, call.ticket)
    if started:
        lease = {"lease": request.lease, "usual": conf().visibility, "worker": worker, "now": None}
        sql.ask("set_fetch_leases", object, {"calls": started, **lease})
    return started


def _worker_of(request: FetchRequest) -> UUID | None:
    return None if request.worker is None else worker_id(request.worker)


def _holders(call: UUID) -> Collection[UUID | None]:
    held = find(call)
    return held.holders if held else ()


def _renew_lease(call: UUID, holders: Iterable[UUID | None]) -> None:
    """Renew the leases of these holders; the caller has locked the call."""
    for holder in holders:
        params = {"calls": [call], "worker": holder, "lease": None, "usual": conf().visibility, "now": None}
        sql.fetch("renew_fetch_leases", UUID, params)


def _end_attempt(
    call: UUID | ReservedCall,
    proof: Proof,
    end: Callable[[ReservedCall, UUID], finish.Released | None],
    ended: Collection[State] = (),
) -> CallQueue | RejectedReport:
    """End the attempt of a fetched call if the reporting worker holds it, and release its capacity.

    ended: the states in which such a report leaves a call, if the report may be repeated.
    """
    row = call if isinstance(call, ReservedCall) else find(call)
    if row is None:
        return RejectedReport(state=None)
    holders = set(row.holders)
    ticket, nth, worker = proof.get("ticket"), proof.get("attempt"), proof.get("worker")
    if row.state != State.ACTIVE or row.ticket is None or not holders:
        is_by_claim = ticket is not None and row.claim == ticket
        return _get(row.id) if is_by_claim and row.state in ended else RejectedReport(state=State(row.state))
    needs_name = worker is not None or (nth is not None and ticket is None)
    is_anothers = needs_name and not holders & {None, worker_id(worker) if worker else None}
    if is_anothers or ticket not in (None, row.ticket) or nth not in (None, row.attempt):
        return RejectedReport(state=State(row.state), is_anothers=True)
    released = end(row, row.ticket)
    if released is None:
        return RejectedReport(state=State(_get(row.id).state))
    with sql.together():
        room = admit.released_room(released.keys, released.lane_id)
        reported = fetched.ask([row.id])
    engine.fill(room.row())
    return reported.row()


def _get(call: UUID) -> CallQueue:
    (row,) = fetched.read([call])
    return row
