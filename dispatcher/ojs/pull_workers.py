"""Workers that fetch calls over HTTP: their ids, their heartbeats, and the directives that they get with those."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid5

from django.db.models import F
from django.db.models.functions import Now

from dispatcher import ending, sql
from dispatcher.conf import conf
from dispatcher.ending import InFlight
from dispatcher.engine import dispenser
from dispatcher.lifecycle import finish, take
from dispatcher.lifecycle.finish import Ended, Requeue
from dispatcher.lifecycle.recover import judged_until
from dispatcher.lifecycle.take import Taker
from dispatcher.models import LeaseCheck, Slot
from dispatcher.ojs import event_log
from dispatcher.ojs.errors import AttemptTimedOut, LeaseLapsed
from dispatcher.ojs.models import EventLogEntry, PullWorker
from dispatcher.ojs.wire import format_time, the_one

_NAMES = UUID("6f1d2c52-5c0e-5bfb-9d0c-0d9b2f0b8a11")
"""The namespace of worker ids, which are derived from worker names."""


@dataclass(frozen=True, kw_only=True)
class HeartbeatResult:
    """The worker's directive (running, quiet, terminate), and the calls whose leases a heartbeat renewed."""

    directive: str
    kept: Sequence[UUID]


def heartbeat(
    worker: str, calls: Iterable[UUID], *, lease: timedelta | None = None, state: str | None = None
) -> HeartbeatResult:
    """Record that a worker is alive and still runs these calls; return its directive."""
    directive = touch_worker(worker, state=state)
    kept = renew([*calls], worker_id(worker), lease)
    if event_log.is_kept():
        event_log.note([*_heartbeat_events(worker, kept)])
    return HeartbeatResult(directive=directive, kept=kept)


def renew(calls: Sequence[UUID], worker: UUID | None, lease: timedelta | None = None) -> list[UUID]:
    """Renew the leases of these calls that a worker holds, None without a name; return them."""
    params = {"calls": calls, "worker": worker, "lease": lease, "usual": conf().visibility, "now": None}
    return sql.fetch("renew_fetch_leases", UUID, params) if calls else []


def _heartbeat_events(worker: str, calls: Sequence[UUID]) -> Iterator[EventLogEntry]:
    held = Slot.objects.filter(call__in=calls, pulled_until__isnull=False)
    for slot in held.order_by("call").distinct("call").select_related("call"):
        data: dict[str, Any] = {"job_id": str(slot.call.id), "job_type": slot.call.task, "worker_id": worker}
        data |= {"attempt": slot.call.attempt, "visible_until": format_time(slot.pulled_until)}
        yield EventLogEntry(kind="job.heartbeat", queue=slot.call.queue, data=data)


def set_directive(worker: str, directive: str) -> bool:
    """Set the directive that a worker gets with its next heartbeat; return whether the worker is known."""
    known = PullWorker.objects.filter(id=worker_id(worker))
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


def find(worker: str) -> PullWorker:
    """Return the row of a worker. Raises Problem if it is unknown."""
    return the_one(PullWorker.objects.filter(id=worker_id(worker)), "worker", worker)


def worker_id(worker: str) -> UUID:
    """Return the id of a worker's name."""
    return uuid5(_NAMES, worker)


logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ExpiredFetch(InFlight):
    """A fetched call whose lease expired."""

    is_timeout: bool
    """Its attempt has used up the time that it has."""
    is_confirmed: bool
    """Its worker has sent a heartbeat or progress for it."""
    attempt: int
    retry: dict[str, Any] | None
    crashes: int


def reclaim(*, until: datetime | None = None, now: datetime | None = None) -> int:
    """End the attempts of calls that were fetched over HTTP and whose lease, or time, ran out; return how many.

    until: their leases were over by then; by default as `recover` judges them, or `now` if that is given.
    """
    until = until or now or _overdue_until()
    if until is None:
        return 0
    with sql.own_transaction():
        overdue = sql.fetch("lock_overdue", ExpiredFetch, {"now": until, "most": conf().batch})
        each = {left.call_id: left for left in overdue}.values()
        silent = [left for left in each if _is_spared(left)]
        for left in silent:
            finish.requeue(left.call_id, left.ticket, Requeue.SILENT, now=now)
        ends = [_ended(left) for left in each if left not in silent]
        taken = take.take(Taker(), ends, publish=dispenser.PUBLISH) if each else None
    if taken is not None:
        logger.warning("fetched calls put back, as their leases had run out: %d", len(each))
        dispenser.serve(taken)
    return len(each)


def _overdue_until() -> datetime | None:
    """Return by when the lease of a fetched call must have been over to be judged; None if none is over, or may be.

    Leases that the latest look could not judge are looked at once a second.
    """
    latest, wait = LeaseCheck.objects.filter(checked_at__gt=Now() - timedelta(seconds=1)), 2 * conf().heartbeat
    is_over = Slot.objects.filter(pulled_until__lte=Now()).exists()
    return judged_until() if is_over and not latest.filter(since__gt=F("checked_at") - wait).exists() else None


def _is_spared(left: ExpiredFetch) -> bool:
    """Return whether no attempt is spent.

    Where its worker sent nothing since the fetch, the answer to that may be lost: less than `poison_after` times in a
    row.
    """
    return not (left.is_timeout or left.is_confirmed) and left.crashes + 1 < conf().poison_after


def _ended(left: ExpiredFetch) -> Ended:
    """Return how the attempt ends; without a wait if its lease ran out."""
    error = (
        AttemptTimedOut("it ran for longer than its timeout")
        if left.is_timeout
        else LeaseLapsed("lease expired without a heartbeat")
    )
    wait = None if left.is_timeout else timedelta(0)
    decided = ending.failed(error, attempt=left.attempt, policy=left.retry, wait=wait)
    return Ended(call_id=left.call_id, ticket=left.ticket, claim_id=None, ending=decided)
