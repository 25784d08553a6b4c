"""Events (ojs-events), built from the rows of jobs, workflows and workers, and from the event log.

Events of jobs, workflows and workers need no rows of their own. What a row does not keep is lost: the start of an
earlier attempt, and every event of a job whose retention is over. Events of limits and queues come from the event log,
if it is enabled.

An event becomes visible when no earlier event can appear: when every transaction that began before it has ended. So a
client that reads after an event's id, or after a cursor, misses no event.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from heapq import nsmallest
from itertools import chain
from time import monotonic
from typing import Any, Final

from dispatcher.models import CallQueue, Worker
from dispatcher.ojs.events import source
from dispatcher.ojs.events.event import Event, build_event, cursor_at, job_events, time_of, workflow_events
from dispatcher.ojs.events.source import CallFilter, Span
from dispatcher.ojs.models import EventLogEntry, Workflow
from dispatcher.ojs.wire import fitting
from dispatcher.states import State

_FIRST_LOOK: Final = timedelta(minutes=1)
_FURTHER: Final = 4
_ENDS: Final = {"job.completed": State.COMPLETED, "job.cancelled": State.CANCELLED}
"""The events that each row of a state, and no other row, has."""
_BUDGET_S: Final = 0.2
"""The time after which a read stops at the end of its current span."""


@dataclass(frozen=True, kw_only=True)
class EventFilter(CallFilter):
    """Selects events by type (`job.*` for a family), and by their calls; an empty field matches all."""

    types: Collection[str] = ()

    def matches(self, event: Mapping[str, Any]) -> bool:
        """Return whether the filter matches an event."""
        return (
            (not self.types or any(fnmatchcase(event["type"], kind) for kind in self.types))
            and (not self.queues or event["data"].get("queue") in self.queues)
            and (not self.tasks or event["data"].get("job_type") in self.tasks)
        )

    def may_match(self, *families: str) -> bool:
        """Return whether the filter can match an event of one of these families."""
        heads = {kind.partition(".")[0] for kind in self.types}
        return not self.types or bool(heads.intersection((*families, "*")))

    @property
    def ended_in(self) -> list[State]:
        """The states of the only rows that can match, each by its last event; none if others can."""
        states = [_ENDS.get(kind) for kind in self.types]
        return [] if None in states else [state for state in states if state is not None]


@dataclass(frozen=True, kw_only=True)
class Page:
    """Events, oldest first, and the cursor to continue after."""

    events: list[Event]
    cursor: str
    has_more: bool = False


def now() -> str:
    """Return the cursor of the present: every later event has a higher id."""
    return cursor_at(source.settled_at())


def latest(wanted: EventFilter, most: int) -> Page:
    """Return the latest events, from a bounded number of the latest rows."""
    until = now()
    # Each row gives at least one event. But for the ends of jobs, its type is known only after the read.
    ended = wanted.ended_in
    rows_read = source.LATEST if wanted.types and not ended else most
    events = _matching(
        wanted,
        calls=source.latest_calls(wanted, rows_read, ended=ended),
        entries=source.entries(wanted).order_by("-at")[:rows_read],
        workflows=Workflow.objects.order_by("-id").prefetch_related("parts")[:rows_read],
    )
    found = {event["id"]: event for event in events if event["id"] < until}
    last = [found[number] for number in sorted(found)][-most:]
    return Page(events=last[len(last) - _fitting(reversed(last)) :], cursor=until)


def after(wanted: EventFilter, cursor: str, most: int) -> Page:
    """Return the next events after a cursor, within the time budget. Raises ValueError for an invalid cursor."""
    began, begin, until = monotonic(), time_of(cursor), source.settled_at()
    found: dict[str, Event] = {}
    has_more = False
    for edge in [until] if wanted.call else _edges(wanted, begin, until):
        there = between(wanted, cursor, edge)
        found |= {event["id"]: event for event in nsmallest(most + 1, there, key=lambda event: str(event["id"]))}
        events = [found[number] for number in sorted(found)][:most]
        if len(found) > (count := _fitting(events)):
            return Page(events=events[:count], cursor=events[count - 1]["id"], has_more=True)
        cursor = max(cursor, cursor_at(edge))
        if has_more := edge < until and monotonic() - began >= _BUDGET_S:
            break
    return Page(events=[found[number] for number in sorted(found)], cursor=cursor, has_more=has_more)


def _fitting(events: Iterable[Event]) -> int:
    return fitting(len(json.dumps(event)) for event in events)


def between(wanted: EventFilter, cursor: str, until: datetime) -> Iterator[Event]:
    """Return the events after a cursor and before a time, each once, in no order."""
    span, end = Span(since=time_of(cursor), until=until), cursor_at(until)
    seen = set()
    entries = source.entries(wanted).filter(span.within("at")).iterator()
    calls, workflows = source.calls_of(wanted, span), source.workflows_of(span)
    for event in _matching(wanted, calls=calls, entries=entries, workflows=workflows):
        if cursor < event["id"] < end and event["id"] not in seen:
            seen.add(event["id"])
            yield event


def _matching(
    wanted: EventFilter, *, calls: Iterable[CallQueue], entries: Iterable[EventLogEntry], workflows: Iterable[Workflow]
) -> Iterator[Event]:
    """Return the matching events of these rows, and of workers; rows that can't have any are not read."""
    is_of_all = not (wanted.call or wanted.is_selective)
    # Drops by limits and full queues, and crons, are events of jobs, too.
    of_calls = (
        chain.from_iterable(map(job_events, calls))
        if wanted.may_match("job", "rate_limit", "backpressure", "cron")
        else ()
    )
    of_workflows = _from_workflows(workflows) if is_of_all and wanted.may_match("workflow") else ()
    latest_workers = Worker.objects.order_by("-started_at")[: source.LATEST]
    of_workers = _from_workers(latest_workers) if is_of_all and wanted.may_match("worker") else ()
    return filter(wanted.matches, chain(of_calls, _from_event_log(entries), of_workflows, of_workers))


def _edges(wanted: EventFilter, begin: datetime, until: datetime) -> Iterator[datetime]:
    """Return the ends of the spans to read: each is longer, but with a bounded number of rows."""
    first_at = CallQueue.objects.order_by("id").values_list("created_at", flat=True).first()
    edge, step = max(begin, min(until, first_at or until)), _FIRST_LOOK
    while True:
        span = Span(since=edge, until=min(edge + step, until))
        edge = source.split_at(wanted, span) or span.until
        yield edge
        if edge >= until:
            return
        step *= _FURTHER


def _from_event_log(entries: Iterable[EventLogEntry]) -> Iterator[Event]:
    for entry in entries:
        data = {"queue": entry.queue, **entry.data} if entry.queue else entry.data
        subject = next(str(data[name]) for name in ("job_id", "cron_name", "key", "queue") if data.get(name))
        yield build_event(entry.kind, entry.at, subject, data, discriminator=entry.pk)


def _from_workflows(workflows: Iterable[Workflow]) -> Iterator[Event]:
    for workflow in workflows:
        yield from workflow_events(workflow, list(workflow.parts.all()), source.steps_of(workflow))


def _from_workers(workers: Iterable[Worker]) -> Iterator[Event]:
    for worker in workers:
        data = {"worker_id": str(worker.id), "queues": worker.queues, "concurrency": worker.processes}
        yield build_event("worker.started", worker.started_at, str(worker.id), data)
        if (ended := worker.stopped_at or worker.lost_at) is not None:
            data = {"worker_id": str(worker.id), "reason": "shutdown" if worker.stopped_at else "error"}
            yield build_event("worker.stopped", ended, str(worker.id), data)
