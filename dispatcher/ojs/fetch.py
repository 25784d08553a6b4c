"""Pull: workers in any language fetch calls, report how they ended, and say that they live.

A fetch is an admission and a claim in one transaction, by the statements of every other way in. What is fetched is
held under a lease, and fenced by the ticket: a report that comes late, or from somebody else, changes nothing.
"""

import logging
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import Any, TypedDict, Unpack
from uuid import UUID, uuid5

from dispatcher import engine, event_log, lanes, sql
from dispatcher.conf import conf
from dispatcher.ending import Reported
from dispatcher.engine import attempt
from dispatcher.event_log import Entry
from dispatcher.history import By
from dispatcher.lifecycle import admit, claim, finish, run, schedule
from dispatcher.models import CallQueue, PullWorker, Queue, Slot
from dispatcher.ojs.waiters import WAITERS, Ready, ready
from dispatcher.states import Delivery, State

logger = logging.getLogger(__name__)

_NAMES = UUID("6f1d2c52-5c0e-5bfb-9d0c-0d9b2f0b8a11")
"""Workers are known by their names within this namespace."""
_PASSES = 20
"""How often one fetch looks at a queue whose lanes turn out to be limited."""


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A report that changed nothing: the call is in this state (None: there is none), or another's."""

    state: State | None
    is_anothers: bool = False


@dataclass(frozen=True, kw_only=True)
class Heard:
    """What came of a heartbeat: what the worker is to do (running, quiet, terminate), and the calls that it keeps."""

    directive: str
    kept: Sequence[UUID]


@dataclass(frozen=True, kw_only=True)
class Reached:
    """How far a call is, from 0 to 1, and what its worker says besides: `content` is a JSON text."""

    progress: float
    message: str | None = None
    content: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Directive:
    directive: str


@dataclass(frozen=True, kw_only=True)
class _Waited:
    """The lane that a fetch has waited for, as it is then."""

    id: int
    parked_on_id: int | None


@dataclass(frozen=True, kw_only=True)
class _Kept:
    call_id: UUID


@dataclass(frozen=True, kw_only=True)
class _Progress:
    progress: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Fetching:
    """Who fetches, of which queues, how many calls at the most, and for how long the answer may be waited for.

    lease: for how long the worker wants to be believed without a heartbeat; None: the call's, or the setting's.
    token: whose; is_allowed: whether that still holds, asked by another thread while the worker waits, and before it is
    given a call then.
    """

    queues: Sequence[str]
    worker: str | None = None
    count: int = 1
    lease: timedelta | None = None
    wait: timedelta = timedelta(0)
    who: Hashable = None
    """Whose fetch it is: for those of the same that wait, one is asked whether it is allowed."""
    is_allowed: Callable[[], bool] = lambda: True
    """Whether the credentials still allow the fetch, asked before each further look."""


def fetch(asked: Fetching) -> list[CallQueue]:
    """Start calls for a worker, and return them: queue by queue in the order given, limited ones skipped.

    Nothing is started for a worker that was told to be quiet. Nothing of a queue that Celery serves.
    """
    if asked.worker is not None and see(asked.worker, queues=asked.queues) != "running":
        return []
    until = monotonic() + asked.wait.total_seconds()
    fetched = _fetch_now(asked)
    while not fetched and (left := until - monotonic()) > 0:
        if not (WAITERS.wait(asked.who, asked.queues, left, asked.is_allowed) and asked.is_allowed()):
            break
        fetched = _fetch_now(asked)
    return fetched


class Proof(TypedDict, total=False):
    """What shows that a report is about the attempt that runs; one that names nothing is believed.

    Only the ticket is new at each fetch. An attempt that is not spent gives its number to the next one, so whoever
    names a number must name the worker, too, unless the call was fetched without one.
    """

    ticket: UUID | None
    worker: str | None
    attempt: int | None


@dataclass(frozen=True, kw_only=True)
class Held:
    """A call, and who has fetched it and holds it: None is a worker without a name; nobody, if it runs in Celery."""

    id: UUID
    queue: str
    state: str
    ticket: UUID | None
    claim: UUID | None
    attempt: int
    retry: dict[str, Any] | None
    holders: list[UUID | None]


def find(call: UUID) -> Held | None:
    """Return a call, as a report on it takes it; None if there is none."""
    return next(iter(sql.fetch("find_held", Held, {"call": call})), None)


def ack(call: UUID | Held, *, result: object, **proof: Unpack[Proof]) -> CallQueue | Refused:
    """Record that a fetched call is done, and hand its room on.

    A report that is repeated, and names the ticket that it has ended, changes nothing and returns what the first did.
    """

    def complete(row: Held, ticket: UUID) -> finish.Released | None:
        return finish.complete(row.id, ticket, result=result, number=row.claim)

    return _report(call, proof, complete, (State.COMPLETED,))


def nack(
    call: UUID | Held,
    error: Reported,
    *,
    may_retry: bool | None = None,
    **proof: Unpack[Proof],
) -> CallQueue | Refused:
    """Record that an attempt failed: the call is tried again as its policy says, or ends.

    may_retry: False ends it at once.
    """

    def fail(row: Held, ticket: UUID) -> finish.Released | None:
        policy = row.retry if row.retry is not None else conf().retry
        what = partial(finish.fail, error=error, attempt=row.attempt, policy=policy, may_retry=may_retry)
        return what(row.id, ticket, number=row.claim, is_own=True)

    return _report(call, proof, fail, (State.RETRYABLE, State.AVAILABLE, State.DISCARDED))


def stop(
    call: UUID | Held, wait: timedelta, *, key: str | None = None, by: By | None = None, **proof: Unpack[Proof]
) -> CallQueue | Refused:
    """Let the call wait again, no attempt spent, and nothing start under its keys (or the one named) for this long.

    A second at the least. by: who reports it, for the history.
    """
    wait = max(wait, run.SHORTEST_STOP)
    stopped = run.Stopped(error=RuntimeError("the provider said stop"), wait=wait, key=key)

    def put_off(row: Held, ticket: UUID) -> finish.Released | None:
        return attempt.stop(row.id, ticket, stopped, number=row.claim, by=by)

    return _report(call, proof, put_off, (State.AVAILABLE, State.SCHEDULED))


def give_back(call: UUID | Held, **proof: Unpack[Proof]) -> CallQueue | Refused:
    """Let a fetched call that its worker can't do wait again at the front of its lane, no attempt spent."""

    def put_back(row: Held, ticket: UUID) -> finish.Released | None:
        return attempt.put_back(row.id, ticket, number=row.claim, is_own=True)

    reported = _report(call, proof, put_back, (State.AVAILABLE,))
    if isinstance(reported, CallQueue) and reported.lane_id is not None:
        engine.dispense_briefly(lanes=[reported.lane_id])
    return reported


def cancel(call: UUID) -> CallQueue | Refused:
    """End a call, also one that was fetched and runs: its worker learns it when it reports.

    One that runs in Celery is left alone: its process could not be told.
    """
    if engine.cancel([call]):
        return _row(call)
    return _report(call, {}, lambda row, ticket: finish.cancel(row.id, ticket))


def beat(worker: str, calls: Iterable[UUID], *, lease: timedelta | None = None, state: str | None = None) -> Heard:
    """Say that a worker lives and still runs these calls; return what it is to do."""
    directive = see(worker, state=state)
    params = {"calls": list(calls), "worker": number(worker), "lease": lease, "usual": conf().visibility, "now": None}
    kept = sql.fetch("renew_fetch_leases", _Kept, params) if params["calls"] else []
    ids = [row.call_id for row in kept]
    if event_log.is_kept():
        event_log.note([*_beaten(worker, ids)])
    return Heard(directive=directive, kept=ids)


def _beaten(worker: str, calls: Sequence[UUID]) -> Iterator[Entry]:
    held = Slot.objects.using(conf().database).filter(call__in=calls, pulled_until__isnull=False)
    for slot in held.order_by("call").distinct("call").select_related("call"):
        told: dict[str, Any] = {"job_id": str(slot.call.id), "job_type": slot.call.task, "worker_id": worker}
        told |= {"attempt": slot.call.attempt, "visible_until": slot.pulled_until and slot.pulled_until.isoformat()}
        yield Entry(kind="job.heartbeat", queue=slot.call.queue, data=told)


def note_progress(call: UUID, reached: Reached, **proof: Unpack[Proof]) -> dict[str, Any] | Refused | None:
    """Keep how far a running call is, and return what is kept; None if it does not run.

    Its lease begins anew only for the ticket or the worker that holds it: who names neither may have lost the call to
    another, whose lease must end if it falls silent.
    """
    ticket, nth, worker = proof.get("ticket"), proof.get("attempt"), proof.get("worker")
    name = None if worker is None else number(worker)
    held = {"ticket": ticket, "attempt": nth, "worker": name}
    with sql.atomic():
        kept = sql.fetch("note_progress", _Progress, {"call": call, **held, **asdict(reached)})
        if kept and (ticket or name):
            _renew(call, [holder for holder in _holders(call) if ticket or holder == name])
    if kept:
        return kept[0].progress
    if not any(held.values()) or _row(call).state != State.ACTIVE:
        return None
    return Refused(state=State.ACTIVE, is_anothers=bool(_holders(call)))


def direct(worker: str, directive: str) -> bool:
    """Have a worker told to go on, to be quiet or to terminate; return whether it is known."""
    known = PullWorker.objects.using(conf().database).filter(id=number(worker))
    return known.update(directive=directive) == 1


def see(worker: str, *, queues: Sequence[str] | None = None, state: str | None = None) -> str:
    """Note that a worker was heard of; return what it is to do: running, quiet or terminate."""
    params = {
        "worker": number(worker),
        "name": worker,
        "queues": None if queues is None else list(queues),
        "state": state,
    }
    (told,) = sql.fetch("touch_pull_worker", _Directive, params)
    return told.directive


def number(worker: str) -> UUID:
    """Return the id under which a worker's calls are held."""
    return uuid5(_NAMES, worker)


def open_queue(name: str) -> None:
    """Note a queue that is named over HTTP; one that Celery has nothing to do with may be fetched from."""
    sql.change("open_queue", {"name": name, "delivery": lanes.declared_delivery(name)})


def take_queues(names: Sequence[str]) -> list[str]:
    """Have undecided queues served by workers that fetch; return those that Celery serves."""
    queues = Queue.objects.using(conf().database).filter(name__in=names)
    found = {queue.name: queue for queue in queues}
    if any(queue.is_undecided for queue in found.values()):
        queues.filter(is_undecided=True).update(is_undecided=False)
    return [name for name in names if name in found and found[name].delivery != Delivery.HTTP]


def _fetch_now(asked: Fetching) -> list[CallQueue]:
    fetched: list[UUID] = []
    # Lanes that another fetch has locked are left out at first, and waited for if nothing else is there.
    for waits in (False, True):
        found = ready(asked.queues, most=asked.count)
        if due_in := [queue.name for queue in found if queue.is_due]:
            schedule.wake_due(due_in)
            found = ready(asked.queues, most=asked.count)
        for queue in found:
            if len(fetched) < asked.count:
                fetched += _take(queue, asked.count - len(fetched), asked, waits=waits)
        if fetched or not found:
            break
    rows = CallQueue.objects.using(conf().database).in_bulk(fetched) if fetched else {}
    return [rows[call] for call in fetched if call in rows]


def _take(queue: Ready, most: int, asked: Fetching, *, waits: bool) -> list[UUID]:
    """Start up to so many calls of one queue; waits: for its first lane, if somebody has locked it."""
    taken: list[UUID] = []
    avoid: set[int] = set()
    for _ in range(_PASSES):
        waited: sql.Asked[_Waited] | None = None
        with sql.own_transaction():
            if waits:
                waited = sql.ask("wait_for_lane", _Waited, {"queue": queue.name, "awake": queue.awake})
            made = admit.admit(
                lanes=queue.awake, queues=[queue.name], most=most - len(taken), avoid=avoid, delivery=Delivery.HTTP
            )
            taken += _start(made.calls, asked)
        # Lanes of a key that somebody keeps locked do not take the places of others again.
        is_new = not avoid.issuperset(made.busy)
        avoid.update(made.busy)
        again = admit.recheck(made)
        if again.lanes or again.keys:
            engine.dispense_briefly(lanes=again.lanes, keys=again.keys)
        if waited is not None and not made.has_moved:
            # Passes and senders have left the lane to this fetch while it was locked.
            for lane in waited.rows():
                parked_on = [] if lane.parked_on_id is None else [lane.parked_on_id]
                engine.dispense_briefly(lanes=[lane.id], keys=parked_on)
        if len(taken) >= most or not (made.has_moved or is_new):
            break
    return taken


def _start(admitted: Sequence[admit.Admitted], asked: Fetching) -> list[UUID]:
    """Claim what was admitted, in the same transaction; what may not start after all waits again."""
    worker = None if asked.worker is None else number(asked.worker)
    started = []
    for call in admitted:
        # By the ticket: so the row still names it when a report that it has ended is repeated.
        match claim.claim(call.id, call.ticket, number=call.ticket, worker=worker, lead=timedelta(0)):
            case claim.Claimed():
                started.append(call.id)
            case claim.Refused.EXPIRED:
                finish.expire(call.id, call.ticket)
            case claim.Refused.REVOKED:
                attempt.cancel(call.id)
            case _:
                attempt.put_back(call.id, call.ticket)
    if started:
        lease = {"lease": asked.lease, "usual": conf().visibility, "worker": worker, "now": None}
        sql.ask("hold_pulled", object, {"calls": started, **lease})
    return started


def _holders(call: UUID) -> Collection[UUID | None]:
    held = find(call)
    return held.holders if held else ()


def _renew(call: UUID, holders: Iterable[UUID | None]) -> None:
    """Let the leases that these hold of a call begin anew; the caller has locked it, so nobody else gets it now."""
    for holder in holders:
        params = {"calls": [call], "worker": holder, "lease": None, "usual": conf().visibility, "now": None}
        sql.fetch("renew_fetch_leases", _Kept, params)


def _report(
    call: UUID | Held,
    proof: Proof,
    end: Callable[[Held, UUID], finish.Released | None],
    ended: Collection[State] = (),
) -> CallQueue | Refused:
    """End the attempt of a fetched call, if whoever reports holds it, and hand its room on.

    ended: the states in which such a report leaves a call, if it may be repeated.
    """
    row = call if isinstance(call, Held) else find(call)
    if row is None:
        return Refused(state=None)
    holders = set(row.holders)
    ticket, nth, worker = proof.get("ticket"), proof.get("attempt"), proof.get("worker")
    if row.state != State.ACTIVE or row.ticket is None or not holders:
        is_own = ticket is not None and row.claim == ticket
        return _row(row.id) if is_own and row.state in ended else Refused(state=State(row.state))
    needs_name = worker is not None or (nth is not None and ticket is None)
    is_anothers = needs_name and not holders & {None, number(worker) if worker else None}
    if is_anothers or ticket not in (None, row.ticket) or nth not in (None, row.attempt):
        return Refused(state=State(row.state), is_anothers=True)
    released = end(row, row.ticket)
    if released is None:
        return Refused(state=State(_row(row.id).state))
    engine.hand_over(released.keys, released.lane_id)
    return _row(row.id)


def _row(call: UUID) -> CallQueue:
    return CallQueue.objects.using(conf().database).get(id=call)
