"""Workers that fetch calls over HTTP: their ids, their heartbeats, and the directives that they get with those."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid5

from dispatcher import sql
from dispatcher.conf import conf
from dispatcher.models import Slot
from dispatcher.ojs import event_log
from dispatcher.ojs.event_log import Entry
from dispatcher.ojs.models import PullWorker

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
    held = Slot.objects.filter(call__in=calls, pulled_until__isnull=False)
    for slot in held.order_by("call").distinct("call").select_related("call"):
        data: dict[str, Any] = {"job_id": str(slot.call.id), "job_type": slot.call.task, "worker_id": worker}
        data |= {"attempt": slot.call.attempt, "visible_until": slot.pulled_until and slot.pulled_until.isoformat()}
        yield Entry(kind="job.heartbeat", queue=slot.call.queue, data=data)


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


def worker_id(worker: str) -> UUID:
    """Return the id of a worker's name."""
    return uuid5(_NAMES, worker)
