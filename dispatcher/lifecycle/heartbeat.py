"""Heartbeat: a worker says that it lives, and that it still holds what it holds; silence says the contrary."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from dispatcher import sql
from dispatcher.conf import conf

ReservedCall = tuple[UUID, UUID]
"""A call and the ticket by which a worker holds it."""


@dataclass(frozen=True, kw_only=True)
class InFlight:
    """A call in flight that a worker holds; `claim` is the claim that started it, None if it has not started."""

    call_id: UUID
    ticket: UUID
    claim: UUID | None


@dataclass(frozen=True, kw_only=True)
class WorkerInfo:
    """A worker as it describes itself."""

    id: UUID
    name: str
    host: str
    pid: int
    pool: str
    processes: int
    queues: Sequence[str]
    tasks: Sequence[str] | None = None
    """The names of the tasks that it knows, in order; None of a worker that may know every task."""


@dataclass(frozen=True, kw_only=True)
class HeartbeatResult:
    """What came of a heartbeat: how many slots it renewed, and what the worker serves and knows that was not known."""

    slots: int
    is_back: bool
    knows_more: bool


@dataclass(frozen=True, kw_only=True)
class Lost:
    """A worker that fell silent."""

    id: UUID
    name: str


def record(worker: WorkerInfo, held: Sequence[ReservedCall], *, now: datetime | None = None) -> HeartbeatResult:
    """Say that this worker lives and holds these calls, running or not."""
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
    """Say that this worker takes no more messages."""
    grace = conf().queue_grace or timedelta(0)
    sql.change("stop_worker", {"worker": worker, "grace": grace, "now": now})


def held(worker: UUID) -> list[InFlight]:
    """Return the calls that this worker has claimed, or holds by its heartbeats."""
    return sql.fetch("find_calls_of_worker", InFlight, {"worker": worker})


def lose_silent(*, now: datetime | None = None) -> list[Lost]:
    """Mark the workers that fell silent for longer than a lease, and return them."""
    return sql.fetch("mark_lost_workers", Lost, {"lease": conf().run_lease, "now": now})
