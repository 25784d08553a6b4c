"""What happened, as events (ojs-events): told from the rows of jobs, workflows and workers, and from the journal.

For the first three nothing more is written than is there. What a row no longer says is lost: the start of an earlier
attempt, and all of a job whose retention is over. What happens to limits and queues is known where a journal is kept.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any, Final
from uuid import UUID

from django.db.models import QuerySet

from dispatcher.conf import conf
from dispatcher.models import CallQueue, JournalEntry, Worker, Workflow
from dispatcher.states import IN_FLIGHT, TERMINAL
from dispatcher.web.ojs.job_events import of_job
from dispatcher.web.ojs.told import event
from dispatcher.web.ojs.workflow_events import of_workflow

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
        return (
            (not self.types or any(fnmatchcase(event["type"], kind) for kind in self.types))
            and (not self.queues or event["data"].get("queue") in self.queues)
            and (not self.job_types or event["data"].get("job_type") in self.job_types)
        )

    def may_want(self, *families: str) -> bool:
        """Return whether an event of one of these families could be asked for."""
        heads = {kind.partition(".")[0] for kind in self.types}
        return not self.types or bool(heads.intersection((*families, "*")))


def events(asked: Asked) -> list[dict[str, Any]]:
    """Return the events, oldest first."""
    found = chain(
        _of_jobs(asked), _of_journal(asked), *([] if asked.job else [_of_workflows(asked), _of_workers(asked)])
    )
    return sorted((told for told in found if asked.wants(told)), key=lambda told: str(told["id"]))


def _of_jobs(asked: Asked) -> Iterator[dict[str, Any]]:
    # Told from the rows of jobs, too: what a limit or a full queue dropped, and what a cron sent.
    if asked.may_want("job", "rate_limit", "backpressure", "cron"):
        for row in _rows(asked):
            yield from of_job(row)


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


def _of_journal(asked: Asked) -> Iterator[dict[str, Any]]:
    entries = JournalEntry.objects.using(conf().database).order_by("-at")
    if asked.queues:
        entries = entries.filter(queue__in=asked.queues)
    if asked.job is not None:
        entries = entries.filter(data__job_id=str(asked.job))
    for entry in entries[:_ROWS]:
        told = {"queue": entry.queue, **entry.data} if entry.queue else entry.data
        subject = next(str(told[name]) for name in ("job_id", "cron_name", "key", "queue") if told.get(name))
        yield event(entry.kind, entry.at, subject, told, mark=entry.pk)


def _of_workflows(asked: Asked) -> Iterator[dict[str, Any]]:
    if not asked.may_want("workflow") or asked.queues or asked.job_types:
        return
    database = conf().database
    latest = Workflow.objects.using(database).order_by("-id").prefetch_related("parts")[:_ROWS]
    parts = {workflow: list(workflow.parts.all()) for workflow in latest}
    numbers = [part.call for each in parts.values() for part in each if part.call is not None]
    calls = CallQueue.objects.using(database).in_bulk(numbers)
    for workflow, its in parts.items():
        yield from of_workflow(workflow, its, calls)


def _of_workers(asked: Asked) -> Iterator[dict[str, Any]]:
    if not asked.may_want("worker") or asked.queues or asked.job_types:
        return
    database = conf().database
    for worker in Worker.objects.using(database).order_by("-started_at")[:_ROWS]:
        told = {"worker_id": str(worker.id), "queues": worker.queues, "concurrency": worker.processes}
        yield event("worker.started", worker.started_at, str(worker.id), told)
        if (ended := worker.stopped_at or worker.lost_at) is not None:
            why = {"worker_id": str(worker.id), "reason": "shutdown" if worker.stopped_at else "error"}
            yield event("worker.stopped", ended, str(worker.id), why)
