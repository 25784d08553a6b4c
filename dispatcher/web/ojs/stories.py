"""What happened to jobs, as events (ojs-events): told from their rows, so that nothing more is written for them.

A row says when its call was sent, started, failed and ended. What it no longer says is lost: the start of an earlier
attempt, and all of a job whose retention is over.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

from django.db.models import QuerySet

from dispatcher.conf import conf
from dispatcher.models import CallQueue
from dispatcher.states import IN_FLIGHT, TERMINAL, Reason, State
from dispatcher.web.ojs import envelope
from dispatcher.web.ojs.wire import read_moment, stamp

_ROWS: Final = 2_000
"""How many rows of a kind are looked at, latest first."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Which events: of these types (`job.*` for a family), queues and kinds of jobs; all if none is named."""

    types: Collection[str] = ()
    queues: Collection[str] = ()
    job_types: Collection[str] = ()
    job: UUID | None = None

    def wants(self, event: Mapping[str, Any]) -> bool:
        """Return whether an event is asked for."""
        return not self.types or any(fnmatchcase(event["type"], kind) for kind in self.types)


def events(asked: Asked) -> list[dict[str, Any]]:
    """Return the events, oldest first."""
    told = [event for row in _rows(asked) for event in of(row) if asked.wants(event)]
    return sorted(told, key=lambda event: str(event["id"]))


def of(row: CallQueue) -> Iterator[dict[str, Any]]:
    """Tell what happened to one call."""
    about: dict[str, Any] = {"job_id": str(row.id), "job_type": row.task, "queue": row.queue}
    if (trace := row.meta.get("trace_id")) is not None:
        about["trace_id"] = trace
    first = State.SCHEDULED if row.scheduled_at and row.scheduled_at > row.created_at and not row.errors else None
    kind = "job.scheduled" if first else "job.enqueued"
    yield _event(row, kind, row.created_at, {**about, "priority": row.priority})
    if row.started_at and row.attempt:
        yield _event(row, "job.started", row.started_at, {**about, "attempt": row.attempt})
    for failure in row.errors:
        at = read_moment("occurred_at", failure.get("occurred_at"))
        if at is not None:
            told = {"attempt": failure.get("attempt"), "error": envelope.error(failure)}
            yield _event(row, "job.failed", at, {**about, **told})
    if row.state == State.RETRYABLE and row.errors:
        more = {"next_retry_at": stamp(row.scheduled_at), "max_attempts": envelope.max_attempts(row)}
        failed_at = read_moment("occurred_at", row.errors[-1].get("occurred_at"))
        yield _event(row, "job.retrying", failed_at or row.created_at, {**about, "attempt": row.attempt, **more})
    if row.finished_at:
        yield _event(row, _ended(row), row.finished_at, {**about, **_end(row)})


def _ended(row: CallQueue) -> str:
    return "job.expired" if row.reason == Reason.EXPIRED else f"job.{row.state}"


def _end(row: CallQueue) -> dict[str, Any]:
    began = row.started_at or row.created_at
    spent = None if row.finished_at is None else max(0, round((row.finished_at - began).total_seconds() * 1000))
    told: dict[str, Any] = {"attempt": row.attempt, "duration_ms": spent}
    if row.state == State.DISCARDED:
        told |= {"total_attempts": row.attempt, "reason": row.reason}
        told |= {"last_error": envelope.error(row.error)} if row.error else {}
    return told


def _event(row: CallQueue, kind: str, at: datetime, told: dict[str, Any]) -> dict[str, Any]:
    """Return an event; its id is of the time and of what it tells, so the same event is told under the same id."""
    digest = sha256(f"{row.id} {kind} {told.get('attempt', '')}".encode()).hexdigest()
    number = f"{int(at.timestamp() * 1000):012x}7{digest[:3]}8{digest[3:18]}"
    return {
        "specversion": "1.0",
        "id": f"evt_{UUID(number)}",
        "type": kind,
        "source": "ojs://django-callqueue",
        "time": stamp(at),
        "subject": str(row.id),
        "datacontenttype": "application/json",
        "data": told,
    }


def _rows(asked: Asked) -> list[CallQueue]:
    calls = CallQueue.objects.using(conf().database)
    if asked.job is not None:
        return list(calls.filter(id=asked.job))
    chosen = _chosen(calls, asked)
    found = {row.id: row for row in chosen.order_by("-id")[:_ROWS]}
    for state in TERMINAL:
        found |= {row.id: row for row in chosen.filter(state=state).order_by("-finished_at")[:_ROWS]}
    found |= {row.id: row for row in chosen.filter(state__in=IN_FLIGHT)[:_ROWS]}
    return list(found.values())


def _chosen(calls: QuerySet[CallQueue], asked: Asked) -> QuerySet[CallQueue]:
    chosen = calls.filter(queue__in=asked.queues) if asked.queues else calls
    return chosen.filter(task__in=asked.job_types) if asked.job_types else chosen
