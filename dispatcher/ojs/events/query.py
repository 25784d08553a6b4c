"""What happened, as events (ojs-events): told from the rows of jobs, workflows and workers, and from the journal.

For the first three nothing more is written than is there. What a row no longer says is lost: the start of an earlier
attempt, and all of a job whose retention is over. What happens to limits and queues is known where a journal is kept.

An event is told once nothing earlier can come any more: when no transaction is open that began before it. So who asks
for what comes after an event, or after the mark of a moment, misses nothing.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from heapq import nsmallest
from itertools import chain
from time import monotonic
from typing import Any, Final
from uuid import UUID

from dispatcher.models import CallQueue, JournalEntry, Worker, Workflow
from dispatcher.ojs.events import source
from dispatcher.ojs.events.event import event, mark, moment
from dispatcher.ojs.events.job import of_job
from dispatcher.ojs.events.source import Span, Which
from dispatcher.ojs.events.workflow import of_workflow

Told = dict[str, Any]
_FIRST_LOOK: Final = timedelta(minutes=1)
_FURTHER: Final = 4
_BUDGET_S: Final = 0.2
"""After how long a look at what happened goes no further; it ends with the span that it looks at."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Which events: of these types (`job.*` for a family), queues and kinds of jobs; all if none is named."""

    types: Collection[str] = ()
    queues: Collection[str] = ()
    job_types: Collection[str] = ()
    job: UUID | None = None

    @property
    def which(self) -> Which:
        """Of which calls they tell."""
        return Which(queues=self.queues, tasks=self.job_types, call=self.job)

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

    @property
    def may_want_jobs(self) -> bool:
        """Whether what rows of jobs tell could be asked for: also what a limit or a full queue dropped, a cron sent."""
        return self.may_want("job", "rate_limit", "backpressure", "cron")

    @property
    def may_want_workflows(self) -> bool:
        """Whether what workflows tell could be asked for."""
        return self.job is None and self.may_want("workflow") and not (self.queues or self.job_types)

    @property
    def may_want_workers(self) -> bool:
        """Whether what Celery's workers tell could be asked for."""
        return self.job is None and self.may_want("worker") and not (self.queues or self.job_types)


@dataclass(frozen=True, kw_only=True)
class Page:
    """Events, oldest first, and after what to go on."""

    events: list[Told]
    cursor: str
    has_more: bool = False


def now() -> str:
    """Return the mark of now: what is told after it is all that comes."""
    return mark(source.settled_at())


def latest(asked: Asked, most: int) -> Page:
    """Return the latest events; of very many rows only the latest are looked at."""
    until = now()
    # Each row tells at least one event; which of them are of the types asked for shows when they are read.
    rows_read = source.LATEST if asked.types else most
    found = {
        told["id"]: told
        for told in chain(
            _of_jobs(source.latest_calls(asked.which, rows_read)) if asked.may_want_jobs else (),
            _of_journal(source.latest_entries(asked.which, rows_read)),
            _of_workflows(source.latest_workflows(rows_read)) if asked.may_want_workflows else (),
            _of_workers(source.workers()) if asked.may_want_workers else (),
        )
        if told["id"] < until and asked.wants(told)
    }
    return Page(events=[found[number] for number in sorted(found)][-most:], cursor=until)


def after(asked: Asked, cursor: str, most: int) -> Page:
    """Return the next events after a cursor, as far as a look goes. Raises ValueError if that is no id of an event."""
    began, begin, until = monotonic(), moment(cursor), source.settled_at()
    found: dict[str, Told] = {}
    has_more = False
    for edge in [until] if asked.job else _edges(asked, begin, until):
        there = between(asked, cursor, edge)
        found |= {told["id"]: told for told in nsmallest(most + 1, there, key=lambda told: str(told["id"]))}
        if len(found) > most:
            told = [found[number] for number in sorted(found)][:most]
            return Page(events=told, cursor=told[-1]["id"], has_more=True)
        cursor = max(cursor, mark(edge))
        if has_more := edge < until and monotonic() - began >= _BUDGET_S:
            break
    return Page(events=[found[number] for number in sorted(found)], cursor=cursor, has_more=has_more)


def between(asked: Asked, cursor: str, until: datetime) -> Iterator[Told]:
    """Return the events after a cursor and before a moment, each once and in no order."""
    span, end = Span(since=moment(cursor), until=until), mark(until)
    seen = set()
    for told in chain(
        _of_jobs(source.calls_of(asked.which, span)) if asked.may_want_jobs else (),
        _of_journal(source.entries_of(asked.which, span)),
        _of_workflows(source.workflows_of(span)) if asked.may_want_workflows else (),
        _of_workers(source.workers()) if asked.may_want_workers else (),
    ):
        if cursor < told["id"] < end and told["id"] not in seen and asked.wants(told):
            seen.add(told["id"])
            yield told


def _edges(asked: Asked, begin: datetime, until: datetime) -> Iterator[datetime]:
    """Return how far to look, further each time, but no further than a crowd: a page needs no more than its events."""
    edge, step = max(begin, min(until, source.first_at() or until)), _FIRST_LOOK
    while True:
        span = Span(since=edge, until=min(edge + step, until))
        edge = source.crowded_at(asked.which, span) or span.until
        yield edge
        if edge >= until:
            return
        step *= _FURTHER


def _of_jobs(calls: Iterable[CallQueue]) -> Iterator[Told]:
    return chain.from_iterable(map(of_job, calls))


def _of_journal(entries: Iterable[JournalEntry]) -> Iterator[Told]:
    for entry in entries:
        told = {"queue": entry.queue, **entry.data} if entry.queue else entry.data
        subject = next(str(told[name]) for name in ("job_id", "cron_name", "key", "queue") if told.get(name))
        yield event(entry.kind, entry.at, subject, told, mark=entry.pk)


def _of_workflows(workflows: Iterable[Workflow]) -> Iterator[Told]:
    for workflow in workflows:
        yield from of_workflow(workflow, list(workflow.parts.all()), source.steps_of(workflow))


def _of_workers(workers: Iterable[Worker]) -> Iterator[Told]:
    for worker in workers:
        told = {"worker_id": str(worker.id), "queues": worker.queues, "concurrency": worker.processes}
        yield event("worker.started", worker.started_at, str(worker.id), told)
        if (ended := worker.stopped_at or worker.lost_at) is not None:
            why = {"worker_id": str(worker.id), "reason": "shutdown" if worker.stopped_at else "error"}
            yield event("worker.stopped", ended, str(worker.id), why)
