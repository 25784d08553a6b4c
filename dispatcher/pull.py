"""Pull: workers in any language fetch calls, report how they ended, and say that they live.

A fetch is an admission and a claim in one transaction, by the statements of every other way in. What is fetched is
held under a lease, and fenced by the ticket: a report that comes late, or from somebody else, changes nothing.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from time import monotonic, sleep
from typing import Any
from uuid import UUID, uuid5

from dispatcher import attempt, engine, journal, sql
from dispatcher.conf import conf
from dispatcher.journal import Entry
from dispatcher.lifecycle import admit, claim, finish, run
from dispatcher.models import CallQueue, PullWorker, Queue, Slot
from dispatcher.states import State

logger = logging.getLogger(__name__)

_NAMES = UUID("6f1d2c52-5c0e-5bfb-9d0c-0d9b2f0b8a11")
"""Workers are known by their names within this namespace."""
_PASSES = 20
"""How often one fetch looks at a queue whose lanes turn out to be limited."""
_BUSY_TRIES = 3
_BUSY_PAUSE_S = 0.005
"""For as long a pass of a sender holds a lane that a fetch wants."""
_FIRST_LOOK_S = 0.02
_LAST_LOOK_S = 0.5
"""How long a fetch that waits rests between two looks: at first, and after a while."""


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
class _Name:
    name: str


@dataclass(frozen=True, kw_only=True)
class _Directive:
    directive: str


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
    """

    queues: Sequence[str]
    worker: str | None = None
    count: int = 1
    lease: timedelta | None = None
    wait: timedelta = timedelta(0)


def fetch(asked: Fetching) -> list[CallQueue]:
    """Start calls for a worker, and return them: queue by queue in the order given, limited ones skipped.

    Nothing is started for a worker that was told to be quiet. Nothing of a queue that Celery serves.
    """
    if asked.worker is not None and see(asked.worker, queues=asked.queues) != "running":
        return []
    until = monotonic() + asked.wait.total_seconds()
    pause = _FIRST_LOOK_S
    while not (fetched := _fetch_now(asked)) and monotonic() + pause < until:
        sleep(pause)
        pause = min(1.5 * pause, _LAST_LOOK_S)
    return fetched


def ack(call: UUID, *, result: object, ticket: UUID | None = None, worker: str | None = None) -> CallQueue | Refused:
    """Record that a fetched call is done, and hand its room on."""
    return _report(call, ticket, worker, lambda row, held: finish.complete(row.id, held, result=result))


def nack(
    call: UUID,
    error: finish.Reported,
    *,
    may_retry: bool | None = None,
    ticket: UUID | None = None,
    worker: str | None = None,
) -> CallQueue | Refused:
    """Record that an attempt failed: the call is tried again as its policy says, or ends.

    may_retry: False ends it at once.
    """

    def fail(row: CallQueue, held: UUID) -> finish.Released | None:
        policy = row.retry if row.retry is not None else conf().retry
        return finish.fail(row.id, held, error=error, attempt=row.attempt, policy=policy, may_retry=may_retry)

    return _report(call, ticket, worker, fail)


def stop(
    call: UUID, wait: timedelta, *, key: str | None = None, ticket: UUID | None = None, worker: str | None = None
) -> CallQueue | Refused:
    """Let the call wait again, no attempt spent, and nothing start under its keys (or the one named) for this long.

    A second at the least.
    """
    wait = max(wait, run.SHORTEST_STOP)
    stopped = run.Stopped(error=RuntimeError("the provider said stop"), wait=wait, key=key)
    return _report(call, ticket, worker, lambda row, held: attempt.stop(row.id, held, stopped))


def give_back(call: UUID, *, ticket: UUID | None = None, worker: str | None = None) -> CallQueue | Refused:
    """Let a fetched call that its worker can't do wait again at the front of its lane, no attempt spent."""

    def put_back(row: CallQueue, held: UUID) -> finish.Released | None:
        return attempt.put_back(row.id, held)

    reported = _report(call, ticket, worker, put_back)
    if isinstance(reported, CallQueue) and reported.lane_id is not None:
        engine.dispense_briefly(lanes=[reported.lane_id])
    return reported


def cancel(call: UUID) -> CallQueue | Refused:
    """End a call, also one that was fetched and runs: its worker learns it when it reports.

    One that runs in Celery is left alone: its process could not be told.
    """
    if engine.cancel([call]):
        return _row(call, CallQueue())
    return _report(call, None, None, lambda row, held: finish.cancel(row.id, held))


def beat(worker: str, calls: Iterable[UUID], *, lease: timedelta | None = None, state: str | None = None) -> Heard:
    """Say that a worker lives and still runs these calls; return what it is to do."""
    directive = see(worker, state=state)
    params = {"calls": list(calls), "worker": number(worker), "lease": lease, "usual": conf().visibility, "now": None}
    kept = sql.fetch("renew_fetch_leases", _Kept, params) if params["calls"] else []
    ids = [row.call_id for row in kept]
    if journal.is_kept():
        journal.note([*_beaten(worker, ids)])
    return Heard(directive=directive, kept=ids)


def _beaten(worker: str, calls: Sequence[UUID]) -> Iterator[Entry]:
    held = Slot.objects.using(conf().database).filter(call__in=calls, pulled_until__isnull=False)
    for slot in held.order_by("call").distinct("call").select_related("call"):
        told: dict[str, Any] = {"job_id": str(slot.call.id), "job_type": slot.call.task, "worker_id": worker}
        told |= {"attempt": slot.call.attempt, "visible_until": slot.pulled_until and slot.pulled_until.isoformat()}
        yield Entry(kind="job.heartbeat", queue=slot.call.queue, data=told)


def note_progress(
    call: UUID, reached: Reached, *, ticket: UUID | None = None, worker: str | None = None
) -> dict[str, Any] | Refused | None:
    """Keep how far a running call is, and return what is kept; None if it does not run.

    Its lease begins anew only for the ticket or the worker that holds it: who names neither may have lost the call to
    another, whose lease must end if it falls silent.
    """
    name = None if worker is None else number(worker)
    with sql.atomic():
        kept = sql.fetch(
            "note_progress", _Progress, {"call": call, "ticket": ticket, "worker": name, **asdict(reached)}
        )
        if kept and (ticket, name) != (None, None):
            _renew(call, [holder for holder in _holders(call) if ticket is not None or holder == name])
    if kept:
        return kept[0].progress
    if (ticket, name) == (None, None) or _row(call, CallQueue()).state != State.ACTIVE:
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
    """Note a queue that is named over HTTP; one that Celery has nothing to do with is fetched from."""
    sql.change("open_queue", {"name": name})


def celerys(names: Sequence[str]) -> list[str]:
    """Return those of these queues that Celery serves: their calls can't be fetched."""
    pulled = Queue.objects.using(conf().database).filter(name__in=names)
    is_pulled = dict(pulled.values_list("name", "is_pulled"))
    return [name for name in names if is_pulled.get(name) is False]


def _fetch_now(asked: Fetching) -> list[CallQueue]:
    fetched: list[UUID] = []
    for _ in range(_BUSY_TRIES):
        ready = sql.fetch("ready_queues", _Name, {"queues": list(asked.queues)})
        for queue in ready:
            if len(fetched) < asked.count:
                fetched += _take(queue.name, asked.count - len(fetched), asked)
        if fetched or not ready:
            break
        sleep(_BUSY_PAUSE_S)
    rows = CallQueue.objects.using(conf().database).in_bulk(fetched) if fetched else {}
    return [rows[call] for call in fetched if call in rows]


def _take(queue: str, most: int, asked: Fetching) -> list[UUID]:
    """Start up to so many calls of one queue."""
    taken: list[UUID] = []
    avoid: set[int] = set()
    for _ in range(_PASSES):
        with sql.own_transaction():
            sql.ask("lock_fetch", object, {"queue": queue})
            made = admit.admit(queues=[queue], most=most - len(taken), avoid=avoid, is_pull=True)
            taken += _start(made.calls, asked)
        # Lanes of a key that somebody keeps locked do not take the places of others again.
        is_new = not avoid.issuperset(made.busy)
        avoid.update(made.busy)
        again = admit.recheck(made)
        if again.lanes or again.keys:
            engine.dispense_briefly(lanes=again.lanes, keys=again.keys)
        if len(taken) >= most or not (made.has_moved or is_new):
            break
    return taken


def _start(admitted: Sequence[admit.Admitted], asked: Fetching) -> list[UUID]:
    """Claim what was admitted, in the same transaction; what may not start after all waits again."""
    worker = None if asked.worker is None else number(asked.worker)
    started = []
    for call in admitted:
        match claim.claim(call.id, call.ticket, worker=worker, lead=timedelta(0)):
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


def _holders(call: UUID) -> set[UUID | None]:
    """Return who has fetched a call and holds it: a worker without a name is None; nobody does if it runs in Celery."""
    slots = Slot.objects.using(conf().database).filter(call=call, pulled_until__isnull=False)
    return set(slots.values_list("worker_id", flat=True))


def _renew(call: UUID, holders: Iterable[UUID | None]) -> None:
    """Let the leases that these hold of a call begin anew; the caller has locked it, so nobody else gets it now."""
    for holder in holders:
        params = {"calls": [call], "worker": holder, "lease": None, "usual": conf().visibility, "now": None}
        sql.fetch("renew_fetch_leases", _Kept, params)


def _report(
    call: UUID,
    ticket: UUID | None,
    worker: str | None,
    end: Callable[[CallQueue, UUID], finish.Released | None],
) -> CallQueue | Refused:
    """End the attempt of a fetched call, if whoever reports holds it, and hand its room on."""
    row = CallQueue.objects.using(conf().database).filter(id=call).first()
    if row is None:
        return Refused(state=None)
    holders = _holders(call)
    if row.state != State.ACTIVE or row.ticket is None or not holders:
        return Refused(state=State(row.state))
    is_anothers = worker is not None and not holders & {None, number(worker)}
    if is_anothers or ticket not in (None, row.ticket):
        return Refused(state=State(row.state), is_anothers=True)
    released = end(row, row.ticket)
    if released is None:
        return Refused(state=State(_row(call, row).state))
    engine.hand_over(released.keys, released.lane_id)
    return _row(call, row)


def _row(call: UUID, known: CallQueue) -> CallQueue:
    return CallQueue.objects.using(conf().database).filter(id=call).first() or known
