"""Heartbeat: register a worker and renew the leases of its calls; a worker without heartbeats counts as lost."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from dispatcher import lanes, sql
from dispatcher.conf import conf
from dispatcher.ending import InFlight

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
        "worker": worker.id,
        "name": worker.name,
        "host": worker.host,
        "pid": worker.pid,
        "pool": worker.pool,
        "processes": worker.processes,
        "queues": list(worker.queues),
        "deliveries": [lanes.declared_delivery(queue) for queue in worker.queues],
        "tasks": worker.tasks,
        "calls": [call for call, _ in held],
        "tickets": [ticket for _, ticket in held],
        "lease": settings.run_lease,
        "serves": max(settings.run_lease, grace),
        "now": now,
    }
    (result,) = sql.fetch("record_heartbeat", HeartbeatResult, params)
    return result


def mark_stopped(worker: UUID, *, now: datetime | None = None) -> None:
    """Record that a worker accepts no more messages."""
    grace = conf().queue_grace or timedelta(0)
    sql.change("stop_worker", {"worker": worker, "grace": grace, "now": now})


def held(worker: UUID) -> list[InFlight]:
    """Return the calls that a worker has claimed, each with its claim, or reserved by its heartbeats."""
    return sql.fetch("find_calls_of_worker", InFlight, {"worker": worker})


def lose_silent(*, now: datetime | None = None) -> list[str]:
    """Mark workers without heartbeats for longer than a lease as lost, and return their names."""
    return sql.fetch("mark_lost_workers", str, {"lease": conf().run_lease, "now": now})
