"""Heartbeat: a worker says that it lives, and that it still holds what it holds; silence says the contrary."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from dispatcher import sql
from dispatcher.conf import conf

Held = tuple[UUID, UUID]
"""A call and the ticket by which a worker holds it."""


@dataclass(frozen=True, kw_only=True)
class InFlight:
    """A call in flight that a worker holds; `claim` is the claim that started it, None if it has not started."""

    call_id: UUID
    ticket: UUID
    claim: UUID | None


@dataclass(frozen=True, kw_only=True)
class Here:
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
class Heard:
    """What came of a heartbeat: how many slots it renewed, and what the worker serves and knows that was not known."""

    slots: int
    is_back: bool
    knows_more: bool


@dataclass(frozen=True, kw_only=True)
class Lost:
    """A worker that fell silent."""

    id: UUID
    name: str


def beat(here: Here, held: Sequence[Held], *, now: datetime | None = None) -> Heard:
    """Say that this worker lives and holds these calls, running or not."""
    settings = conf()
    grace = settings.queue_grace or timedelta(0)
    params = {
        "worker": here.id,
        "name": here.name,
        "host": here.host,
        "pid": here.pid,
        "pool": here.pool,
        "processes": here.processes,
        "queues": list(here.queues),
        "tasks": here.tasks,
        "calls": [call for call, _ in held],
        "tickets": [ticket for _, ticket in held],
        "lease": settings.run_lease,
        "serves": max(settings.run_lease, grace),
        "now": now,
    }
    (heard,) = sql.fetch("beat", Heard, params)
    return heard


def stop(worker: UUID, *, now: datetime | None = None) -> None:
    """Say that this worker takes no more messages."""
    grace = conf().queue_grace or timedelta(0)
    sql.change("stop_worker", {"worker": worker, "grace": grace, "now": now})


def held(worker: UUID) -> list[InFlight]:
    """Return the calls that this worker has claimed, or holds by its heartbeats."""
    return sql.fetch("held_calls", InFlight, {"worker": worker})


def lose_silent(*, now: datetime | None = None) -> list[Lost]:
    """Mark the workers that fell silent for longer than a lease, and return them."""
    return sql.fetch("lose_workers", Lost, {"lease": conf().run_lease, "now": now})
