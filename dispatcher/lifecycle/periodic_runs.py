"""Periodic runs: the row of a periodic task elects the worker that runs it next, and records when it last began."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final
from uuid import UUID

from django.db.models import OuterRef, Subquery

from dispatcher import sql
from dispatcher.conf import conf
from dispatcher.models import PeriodicRun, Worker

TICK: Final = "dispatcher.tick"
RECOVER: Final = "dispatcher.recover"
CLEANUP: Final = "dispatcher.cleanup"
_EARLY: Final = 0.9
"""A run may begin so much earlier, as a part of its period: who looks a little too early would be a period late."""
_PATIENCE: Final = timedelta(milliseconds=500)
"""How long it waits for a worker that begins a run; then a user has locked the row."""


@dataclass(frozen=True, kw_only=True)
class Periodic:
    """A periodic task: its name, and how often it is to run."""

    name: str
    every: timedelta
    grace: timedelta = timedelta(0)
    """How much longer a worker waits for the next run where a message asked for the last one, as beat's do."""

    @property
    def late(self) -> timedelta:
        """Return the age of the last run that is reported."""
        return max(8 * self.every, 2 * (self.every + self.grace))


@dataclass(frozen=True, kw_only=True)
class LastRun:
    """When a periodic task last started, as far as it is known."""

    name: str
    ran_at: datetime | None
    worker: str | None
    """The worker that ran it by itself; None if it was asked for, by beat say."""
    at: datetime
    is_late: bool
    """Whether that is too long ago."""

    def as_json(self) -> dict[str, Any]:
        """Return it for other programs."""
        last = None if self.ran_at is None else self.ran_at.astimezone(UTC).isoformat(timespec="milliseconds")
        return {
            "name": self.name,
            "last_run_at": last and last.replace("+00:00", "Z"),
            "worker": self.worker,
            "is_late": self.is_late,
        }


def periodic() -> list[Periodic]:
    """Return the periodic tasks that every installation needs.

    A cleanup is waited for much longer than a day: people may have chosen to clean up once a week, at a quiet hour.
    """
    settings = conf()
    return [
        Periodic(name=TICK, every=settings.tick),
        Periodic(name=RECOVER, every=settings.recover_every),
        Periodic(name=CLEANUP, every=timedelta(days=1), grace=timedelta(days=7)),
    ]


def begin(
    tasks: Collection[Periodic], *, worker: UUID | None = None, reaches_broker: bool = True, now: datetime | None = None
) -> list[str]:
    """Note that tasks start now; return which: of workers that ask, one gets each, once a period.

    One whose row a user keeps locked starts without a note, in each worker that asks: it must not stop for that.
    worker: the one that runs them by itself; None if a message asks for them, and they run however often.
    """
    if worker is None and sql.connection().in_atomic_block:
        # It would keep the row locked for as long as the caller's transaction lasts.
        return []
    none = timedelta(0)
    params = {
        "names": [task.name for task in tasks],
        "everys": [none if worker is None else _EARLY * task.every for task in tasks],
        "afters": [none if worker is None else task.every + task.grace for task in tasks],
        "worker": worker,
        "reaches": reaches_broker,
        "patience": f"{_PATIENCE // timedelta(milliseconds=1)}ms",
        "now": now,
    }
    try:
        return sql.fetch("begin_runs", str, params)
    except sql.DATABASE_ERRORS as fault:
        if not sql.is_locked(fault):
            raise
    if len(tasks) == 1:
        return [task.name for task in tasks]
    alone = partial(begin, worker=worker, reaches_broker=reaches_broker, now=now)
    return [name for task in tasks for name in alone([task])]


def last_runs(tasks: Collection[Periodic], *, now: datetime | None = None) -> list[LastRun]:
    """Return when these tasks last started, in this order. A tick that never ran is late; others may be yet to come."""
    at, names = now or sql.now(), Worker.objects.filter(id=OuterRef("ran_by")).values("name")
    rows = PeriodicRun.objects.annotate(worker=Subquery(names)).values_list("name", "ran_at", "worker")
    runs, found = {name: last for name, *last in rows}, list[LastRun]()
    for task in tasks:
        ran_at, worker = runs.get(task.name, (None, None))
        is_late = task.name == TICK if ran_at is None else ran_at + task.late < at
        found.append(LastRun(name=task.name, ran_at=ran_at, worker=worker, at=at, is_late=is_late))
    return found
