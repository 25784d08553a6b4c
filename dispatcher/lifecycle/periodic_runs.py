"""Periodic runs: when the dispenser's periodic tasks last started, and which worker runs them where beat does not."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from dispatcher import sql
from dispatcher.conf import conf

TICK: Final = "dispatcher.tick"
RECOVER: Final = "dispatcher.recover"
CLEANUP: Final = "dispatcher.cleanup"
_SELDOM: Final = timedelta(seconds=3)
_OFTEN: Final = timedelta(seconds=60)


@dataclass(frozen=True, kw_only=True)
class Periodic:
    """A periodic task: its name, how often it is to run, and when a worker runs it because nothing else does."""

    name: str
    every: timedelta
    grace: timedelta | None = None
    """Beyond `every`; None: three times as long, and the time for which a record is not renewed."""

    @property
    def keep(self) -> timedelta:
        """Return for how long a record of a run is not renewed: one that runs every second is written every three."""
        return min(max(self.every, _SELDOM), _OFTEN)

    @property
    def after(self) -> timedelta:
        """Return the age of the last run from which on a worker takes over."""
        return self.keep + 3 * self.every if self.grace is None else self.every + self.grace

    @property
    def late(self) -> timedelta:
        """Return the age of the last run that is reported."""
        return 2 * self.after


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


def record(task: Periodic, *, worker: UUID | None = None, now: datetime | None = None) -> None:
    """Note that a task starts now; worker: the one that runs it by itself, None if it was asked for.

    Within a caller's transaction nothing is noted: it would keep the row locked for as long as that lasts.
    """
    if sql.connection().in_atomic_block:
        return
    sql.change("record_run", {"name": task.name, "keep": task.keep, "worker": worker, "now": now})


def take_over(
    tasks: Collection[Periodic],
    *,
    worker: UUID,
    is_dispenser: bool,
    is_prompt: bool = False,
    now: datetime | None = None,
) -> list[str]:
    """Return the tasks that this worker is to run by itself: beat, or another worker, has not run them for too long.

    is_dispenser: whether it takes the dispenser's queue. Others leave it to those that do while one of them lives.
    is_prompt: whether it takes over at once what never ran, or what a worker ran that has stopped.
    """
    settings = conf()
    params = {
        "names": [task.name for task in tasks],
        "afters": [task.after for task in tasks],
        "idles": [timedelta(0) if is_prompt and task.grace is None else task.after for task in tasks],
        "worker": worker,
        "is_dispenser": is_dispenser,
        "queue": settings.dispenser_queue,
        "lease": settings.run_lease,
        "now": now,
    }
    return sql.fetch("take_over_runs", str, params)


def last_runs(tasks: Collection[Periodic], *, now: datetime | None = None) -> list[LastRun]:
    """Return when these tasks last started, in this order."""
    names, lates = [task.name for task in tasks], [task.late for task in tasks]
    return sql.fetch("report_runs", LastRun, {"names": names, "lates": lates, "now": now})
