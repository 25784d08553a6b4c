"""The rows that events are built from, each found by an index: those of a span of time, or the latest.

A row of a span can have events at other times; the caller filters them.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db.models import Q, QuerySet
from django.db.models.fields.json import KT

from dispatcher import sql
from dispatcher.models import CallQueue, Worker
from dispatcher.ojs.models import EventLogEntry, Part, Workflow
from dispatcher.states import IN_FLIGHT, TERMINAL, WAITING, State

LATEST: Final = 2_000
"""How many rows of a kind a read of the latest events takes."""
_SEARCHED: Final = 100_000
"""Among how many of the latest rows of a kind a queue or a job type is searched for."""
SPLIT_ROWS: Final = 1_000
"""How many rows of a kind one span may have; a millisecond is not divided."""
_UNSEEN: Final = timedelta(minutes=1)
_TABLES: Final = tuple(model._meta.db_table for model in (CallQueue, EventLogEntry, Workflow, Part, Worker))
_DEFERRED: Final = ("args", "kwargs", "call_data", "result")
"""Columns that no event needs, and that may be large."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """A span of time: `since` included, `until` excluded."""

    since: datetime
    until: datetime

    def within(self, field: str) -> Q:
        """Return the condition that a field is within the span."""
        return Q(**{f"{field}__gte": self.since, f"{field}__lt": self.until})


@dataclass(frozen=True, kw_only=True)
class CallFilter:
    """Selects calls of these queues and tasks, or one call; an empty filter selects all."""

    queues: Collection[str] = ()
    tasks: Collection[str] = ()
    call: UUID | None = None

    @property
    def is_selective(self) -> bool:
        """Whether it excludes any call."""
        return bool(self.queues or self.tasks)

    def apply(self, calls: QuerySet[CallQueue]) -> QuerySet[CallQueue]:
        """Return the selected calls."""
        chosen = calls.filter(queue__in=self.queues) if self.queues else calls
        return chosen.filter(task__in=self.tasks) if self.tasks else chosen


def settled_at() -> datetime:
    """Return the time before which no new event can appear: every transaction that began before it has ended."""
    (settled,) = sql.fetch("settled_at", datetime, {"unseen": _UNSEEN, "tables": list(_TABLES)})
    return settled


def calls_of(wanted: CallFilter, span: Span) -> Iterator[CallQueue]:
    """Return the calls that have events in a span; a call may be returned twice."""
    if wanted.call is not None:
        yield from _calls().filter(id=wanted.call)
        return
    calls = wanted.apply(_calls())
    began = span.within("created_at") | span.within("started_at")
    # A call that ended after the span can have started or failed within it.
    ended = Q(finished_at__lt=span.until) | began | ~Q(errors=[])
    calls = calls.filter(created_at__lt=span.until)
    found = (
        calls.filter(span.within("created_at"), state__in=WAITING),
        calls.filter(began, state__in=IN_FLIGHT),
        _ended(calls).filter(ended, finished_at__gte=span.since),
        _failed(calls, span.since),
    )
    yield from chain.from_iterable(rows.iterator() for rows in found)


def split_at(wanted: CallFilter, span: Span) -> datetime | None:
    """Return where to end a span so that it has a bounded number of rows; None: the whole span is small enough."""
    calls = wanted.apply(_calls())
    ended = _ended(calls).filter(finished_at__gte=span.since)
    workflows = Workflow.objects.all()
    kinds: tuple[tuple[QuerySet[Any], str], ...] = (
        (calls.filter(state__in=WAITING), "created_at"),
        (ended, "created_at"),
        (ended, "started_at"),
        (ended, "finished_at"),
        (entries(wanted), "at"),
        (workflows, "created_at"),
        (workflows, "ended_at"),
    )
    ends: list[datetime] = []
    for rows, field in kinds:
        in_order = rows.filter(span.within(field)).order_by(field).values_list(field, flat=True)
        ends += in_order[SPLIT_ROWS : SPLIT_ROWS + 1]
    # Event ids have a resolution of one millisecond.
    return min(max(min(ends), span.since + timedelta(milliseconds=1)), span.until) if ends else None


def latest_calls(wanted: CallFilter, most: int, *, ended: Collection[State] = ()) -> Iterator[CallQueue]:
    """Return the calls with the latest events: a bounded number of each kind, and those in flight.

    ended: only those that ended in one of these states.
    """
    if wanted.call is not None:
        yield from _calls().filter(id=wanted.call)
        return
    calls = _calls()
    found = {} if ended else {row.id: row for row in _latest(calls, "id", wanted, most)}
    for state in ended or TERMINAL:
        found |= {row.id: row for row in _latest(_ended(calls).filter(state=state), "finished_at", wanted, most)}
    if not ended:
        found |= {row.id: row for row in wanted.apply(calls).filter(state__in=IN_FLIGHT)[:LATEST]}
    yield from found.values()


def workflows_of(span: Span) -> Iterator[Workflow]:
    """Return the workflows that have events in a span."""
    all_there = Workflow.objects
    done = _ended(CallQueue.objects.all()).filter(span.within("finished_at"), state=State.COMPLETED)
    parts = Part.objects.filter(call__isnull=False, call__in=done.values("id"))
    found = {
        *all_there.filter(span.within("created_at")).values_list("id", flat=True),
        *all_there.filter(span.within("ended_at")).values_list("id", flat=True),
        *parts.values_list("workflow_id", flat=True),
    }
    yield from all_there.filter(id__in=found).prefetch_related("parts").iterator(chunk_size=LATEST)


def steps_of(workflow: Workflow) -> dict[UUID, CallQueue]:
    """Return the existing calls of the parts of a workflow."""
    return _calls().in_bulk([part.call for part in workflow.parts.all() if part.call is not None])


def _calls() -> QuerySet[CallQueue]:
    return CallQueue.objects.defer(*_DEFERRED)


def _ended(calls: QuerySet[CallQueue]) -> QuerySet[CallQueue]:
    # Both conditions are needed for the index of ended calls.
    return calls.filter(state__in=TERMINAL, finished_at__isnull=False)


def _failed(calls: QuerySet[CallQueue], since: datetime) -> QuerySet[CallQueue]:
    """Return the unfinished calls that failed since then, or in the same second."""
    # The time is text in JSON, in the time zone of the session that wrote it.
    zone = ZoneInfo(sql.connection().timezone_name)
    second = since.astimezone(zone).isoformat(timespec="seconds")[: len("2030-01-01T12:00:00")]
    failed = calls.filter(error__isnull=False, finished_at__isnull=True)
    return failed.alias(failed_at=KT("error__occurred_at")).filter(failed_at__gte=second)


def _latest(calls: QuerySet[CallQueue], field: str, wanted: CallFilter, most: int) -> QuerySet[CallQueue]:
    if wanted.is_selective:
        oldest: Any = calls.order_by(f"-{field}").values_list(field, flat=True)[_SEARCHED : _SEARCHED + 1].first()
        calls = wanted.apply(calls if oldest is None else calls.filter(**{f"{field}__gt": oldest}))
    return calls.order_by(f"-{field}")[:most]


def entries(wanted: CallFilter) -> QuerySet[EventLogEntry]:
    """Return the entries of the event log."""
    found = EventLogEntry.objects.all()
    if wanted.call is not None:
        return found.filter(call_id=wanted.call)
    return found.filter(queue__in=wanted.queues) if wanted.queues else found
