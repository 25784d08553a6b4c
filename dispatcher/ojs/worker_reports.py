"""Reports of workers about calls that they fetched: how an attempt ended, and how far it is.

A fetched call is fenced by its ticket: a late report, or another worker's, changes nothing.
"""

from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, TypedDict, Unpack
from uuid import UUID

from dispatcher import api, ending, engine, sql
from dispatcher.conf import conf
from dispatcher.ending import Ending, Reported
from dispatcher.engine import ends
from dispatcher.history import By
from dispatcher.lifecycle import finish, run
from dispatcher.lifecycle.finish import Ended, Requeue
from dispatcher.models import CallQueue
from dispatcher.ojs import jobs, pull_workers
from dispatcher.states import State


@dataclass(frozen=True, kw_only=True)
class RejectedReport:
    """A report that changed nothing: the call is in this state (None: there is none), or another worker holds it."""

    state: State | None
    is_anothers: bool = False


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of a call, from 0 to 1, if it is known; `content` is JSON text."""

    progress: float | None = None
    message: str | None = None
    content: str | None = None


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
    """Record that a fetched call is completed, and free its room.

    A repeated report with the same ticket changes nothing and returns the call.
    """
    return _end(call, proof, lambda _: ending.completed(result), (State.COMPLETED,))


def nack(
    call: UUID | ReservedCall, error: Reported, *, may_retry: bool | None = None, **proof: Unpack[Proof]
) -> CallQueue | RejectedReport:
    """Record that an attempt failed: the call is retried by its policy, or ends.

    may_retry: False ends it.
    """

    def failed(row: ReservedCall) -> Ending:
        policy = row.retry if row.retry is not None else conf().retry
        return ending.failed(error, attempt=row.attempt, policy=policy, may_retry=may_retry)

    return _end(call, proof, failed, (State.RETRYABLE, State.AVAILABLE, State.DISCARDED))


def report_rate_limit(
    call: UUID | ReservedCall, wait: timedelta, *, key: str | None = None, by: By | None = None, **proof: Unpack[Proof]
) -> CallQueue | RejectedReport:
    """Block the call's keys, or one of them, for this long; the call waits again, and its attempt is not counted.

    At least one second. by: the actor, for the history.
    """
    wait = max(wait, run.SHORTEST_STOP)

    def put_off(row: ReservedCall, ticket: UUID) -> bool:
        ended = Ended(call_id=row.id, ticket=ticket, claim_id=row.claim, ending=ending.stopped(wait, key))
        return ends.stop(ended, by=by)

    return _end_attempt(call, proof, put_off, (State.AVAILABLE, State.SCHEDULED))


def requeue(call: UUID | ReservedCall, **proof: Unpack[Proof]) -> CallQueue | RejectedReport:
    """Return a fetched call that its worker cannot run to the front of its lane; its attempt is not counted."""

    def put_back(row: ReservedCall, ticket: UUID) -> bool:
        # Its claim is kept, so that a repeated report is recognized.
        is_requeued = finish.requeue(row.id, ticket, Requeue.STOPPED, claim_id=row.claim) is not None
        if is_requeued:
            engine.dispense_briefly()
        return is_requeued

    return _end_attempt(call, proof, put_back, (State.AVAILABLE,))


def cancel(call: UUID) -> CallQueue | RejectedReport:
    """Cancel a call, also a fetched one that runs: its worker is informed by the response to its next report.

    A call that runs in Celery is not changed: its process cannot be informed.
    """
    if api.cancel([call]):
        return _get(call)
    return _end(call, {}, lambda _: Ending(state=State.CANCELLED))


def record_progress(call: UUID, reached: Progress, **proof: Unpack[Proof]) -> dict[str, Any] | RejectedReport | None:
    """Store the progress of a running call and return it; None if the call does not run.

    The lease is renewed only with the ticket or the worker's name: a worker that gives neither may have lost the call
    to another, whose lease must expire if it sends no heartbeats.
    """
    ticket, nth, worker = proof.get("ticket"), proof.get("attempt"), proof.get("worker")
    name = None if worker is None else pull_workers.worker_id(worker)
    held = {"ticket": ticket, "attempt": nth, "worker": name}
    with sql.atomic():
        kept = sql.fetch("store_progress", dict, {"call": call, **held, **asdict(reached)})
        for holder in _holders(call) if kept and (ticket or name) else ():
            if ticket or holder == name:
                pull_workers.renew([call], holder)
    if kept:
        return kept[0]
    if not any(held.values()) or _get(call).state != State.ACTIVE:
        return None
    return RejectedReport(state=State.ACTIVE, is_anothers=bool(_holders(call)))


def _holders(call: UUID) -> Collection[UUID | None]:
    held = find(call)
    return held.holders if held else ()


def _end(
    call: UUID | ReservedCall, proof: Proof, decide: Callable[[ReservedCall], Ending], ended: Collection[State] = ()
) -> CallQueue | RejectedReport:
    """End the attempt of a fetched call as `decide` says; see _end_attempt."""

    def record(row: ReservedCall, ticket: UUID) -> bool:
        end = Ended(call_id=row.id, ticket=ticket, claim_id=row.claim, ending=decide(row))
        return bool(ends.record([end], patience=sql.PATIENCE))

    return _end_attempt(call, proof, record, ended)


def _end_attempt(
    call: UUID | ReservedCall, proof: Proof, end: Callable[[ReservedCall, UUID], bool], ended: Collection[State] = ()
) -> CallQueue | RejectedReport:
    """End the attempt of a fetched call if the reporting worker holds it, and free its room.

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
    is_anothers = needs_name and not holders & {None, pull_workers.worker_id(worker) if worker else None}
    if is_anothers or ticket not in (None, row.ticket) or nth not in (None, row.attempt):
        return RejectedReport(state=State(row.state), is_anothers=True)
    if not end(row, row.ticket):
        return RejectedReport(state=State(_get(row.id).state))
    return _get(row.id)


def _get(call: UUID) -> CallQueue:
    (row,) = jobs.read([call])
    return row
