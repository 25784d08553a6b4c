"""Heartbeat: register a worker and renew the leases of its calls; a worker without heartbeats counts as lost."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import Value
from django.db.models.functions import Least

from dispatcher import lanes, sql
from dispatcher.conf import conf
from dispatcher.ending import InFlight
from dispatcher.models import Slot, Worker
from dispatcher.states import State

ReservedCall = tuple[UUID, UUID]
"""(call, ticket) of a call that a worker holds."""


@dataclass(frozen=True, kw_only=True)
class WorkerInfo:
    """The description of a worker."""

    id: UUID
    name: str
    host: str
    pid: int
    pool: str
    processes: int
    queues: Sequence[str]
    tasks: Sequence[str] | None = None
    """The names of the tasks that it knows, in order; None if it may know every task."""


@dataclass(frozen=True, kw_only=True)
class HeartbeatResult:
    """How many slots a heartbeat renewed, and whether the worker's queues, or tasks, were not known as served."""

    slots: int
    is_back: bool
    knows_more: bool


def record(worker: WorkerInfo, held: Sequence[ReservedCall], *, now: datetime | None = None) -> HeartbeatResult:
    """Record a heartbeat: the worker is alive and holds these calls, running or not."""
    settings = conf()
    grace = settings.queue_grace or timedelta(0)
    params = {
        **vars(worker),
        "queues": list(worker.queues),
        "deliveries": [lanes.declared_delivery(queue) for queue in worker.queues],
        "calls": [call for call, _ in held],
        "tickets": [ticket for _, ticket in held],
        "lease": settings.run_lease,
        "serves": max(settings.run_lease, grace),
        "now": now,
    }
    (result,) = sql.fetch("record_heartbeat", HeartbeatResult, params)
    return result


def mark_stopped(worker: UUID, *, now: datetime | None = None) -> None:
    """Record that a worker accepts no more messages; its queues count as served for the grace, as long as it said.

    One whose row another transaction has locked falls silent.
    """
    with sql.own_transaction():
        mine = Worker.objects.filter(id=worker, stopped_at=None).select_for_update(skip_locked=True, no_key=True)
        at = now or sql.now()
        until = Least("serves_until", Value(at + (conf().queue_grace or timedelta(0))))
        Worker.objects.filter(id__in=list(mine.values_list("id", flat=True))).update(
            stopped_at=at, seen_at=at, serves_until=until
        )


def held(worker: UUID) -> list[InFlight]:
    """Return the calls that a worker has claimed, each with its claim, or reserved by its heartbeats."""
    slots = Slot.objects.filter(worker_id=worker).order_by("call_id")
    rows = slots.values_list("call_id", "call__ticket", "call__claim", "call__state").distinct()
    return [
        InFlight(call_id=call, ticket=ticket, claim=claim if state == State.ACTIVE else None)
        for call, ticket, claim, state in rows
        if ticket is not None
    ]


def lose_silent(*, now: datetime | None = None) -> list[str]:
    """Mark workers without heartbeats for longer than a lease as lost, and return their names.

    One that sends one again is no longer lost. One whose row another transaction has locked can't send any: it is left
    to the next look, and then lives while its heartbeats renew what it holds.
    """
    with sql.own_transaction():
        at = now or sql.now()
        held = Slot.objects.filter(lease_until__gte=at, worker_id__isnull=False).values("worker_id")
        silent = Worker.objects.filter(lost_at=None, stopped_at=None, seen_at__lt=at - conf().run_lease)
        mine = silent.exclude(id__in=held).order_by("id").select_for_update(skip_locked=True, no_key=True)
        lost = dict(mine.values_list("id", "name"))
        Worker.objects.filter(id__in=list(lost)).update(lost_at=at)
    return list(lost.values())
