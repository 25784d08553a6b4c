"""What stops calls other than limits: a lack of workers, tasks that never start, old transactions."""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from dispatcher import sql
from dispatcher.conf import counting
from dispatcher.reports.waiting import MANY
from dispatcher.reports.words import format_time

OLD_TRANSACTION: Final = timedelta(minutes=1)
"""The age from which an open transaction is reported: what died since can't be cleaned up, and each call costs more."""
MOST_RUNNABLE: Final = 1_000
"""How far the calls of a queue are counted that could start: more processes than that are not started at once."""
_FEW = 10


@dataclass(frozen=True, kw_only=True)
class Runnable:
    """How many calls of a queue could start now if a process were free: those that no limit holds."""

    name: str
    calls: int
    """Counted up to MOST_RUNNABLE."""
    since: datetime | None
    """Since when the oldest of them waits."""
    active: int
    """How many calls of the queue run."""
    at: datetime

    def as_json(self) -> dict[str, Any]:
        """Write it for other programs, without the name of the queue."""
        return {
            "count": self.calls,
            "counts_up_to": MOST_RUNNABLE,
            "oldest_since": format_time(self.since),
            "active": self.active,
        }


@dataclass(frozen=True, kw_only=True)
class Unserved:
    """A queue whose calls wait because no live worker serves it."""

    name: str
    waiting_count: int
    """Counted up to MANY."""
    worker_seen_at: datetime | None
    """When a worker of it was last seen."""

    def as_json(self) -> dict[str, Any]:
        """Write it for other programs."""
        return {**asdict(self), "worker_seen_at": format_time(self.worker_seen_at)}


@dataclass(frozen=True, kw_only=True)
class Unstarted:
    """A task whose calls wait in a queue since they were published and came back without a start."""

    queue: str
    task: str
    waiting_count: int
    """Counted up to MANY, of all tasks together."""
    returns: int
    """How often in a row one of them came back, at the most."""
    is_known: bool
    """Whether a live worker of the queue knows the task."""

    def as_json(self) -> dict[str, Any]:
        """Write it for other programs."""
        found = asdict(self)
        found["known"] = found.pop("is_known")
        return found


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A row that a check of the audit has found."""

    what: str
    target: str
    """The id, or the name, of the row."""
    version: str
    """Unchanged while the row is unchanged; the ticket of a call in flight."""
    facts: Mapping[str, Any]
    total: int
    """The number of findings of this check, including those that were not read."""
    name: str = ""
    """The check, where several share a statement."""

    @property
    def identity(self) -> tuple[str, str]:
        """The row and its version."""
        return self.target, self.version

    def as_json(self) -> dict[str, Any]:
        """Write it for other programs."""
        return {"what": self.what, **self.facts}


def runnable_calls(queues: Collection[str] | None = None, *, now: datetime | None = None) -> list[Runnable]:
    """Return how many calls of these queues, or of all, could start if a process were free, in order of name."""
    params = {"queues": None if queues is None else list(queues), "most": MOST_RUNNABLE, **counting(), "now": now}
    return sql.fetch("report_runnable", Runnable, params)


def unserved_queues(*, now: datetime | None = None) -> list[Unserved]:
    """Return the queues whose calls wait because no live worker serves them, in order of name."""
    return sql.fetch("report_unserved", Unserved, {"most": MANY, "now": now})


def unstarted_tasks(*, now: datetime | None = None) -> list[Unstarted]:
    """Return the tasks whose calls came back without a start and wait, in order of queue and name."""
    return sql.fetch("report_unstarted", Unstarted, {"most": MANY, "now": now})


def old_transactions() -> list[Finding]:
    """Return up to 10 transactions that have been open for longer than a minute, the oldest first.

    Each names the session, by the process of the server, or the prepared transaction; how long it is `open_for`, as
    hh:mm:ss, the session's `application`, `state` and latest `query`. Those of other users are seen by roles that may
    read all statistics only (pg_read_all_stats).
    """
    return sql.fetch("audit_old_transaction", Finding, {"long": OLD_TRANSACTION, "most": _FEW})
