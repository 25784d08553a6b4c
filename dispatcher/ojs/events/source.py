"""The rows that events are told from, each found by an index: those of a span of time, or the latest.

A row of a span may also tell of other times; who reads it leaves that out.
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
from dispatcher.conf import conf
from dispatcher.models import CallQueue, JournalEntry, Part, Worker, Workflow
from dispatcher.states import IN_FLIGHT, TERMINAL, WAITING, State

LATEST: Final = 2_000
"""How many rows of a kind are looked at where the latest are asked for."""
_SEARCHED: Final = 100_000
"""How many of the latest of a kind a queue or a type is looked for in."""
CROWD: Final = 1_000
"""How many rows of a kind make a crowd, where one look ends; those of one millisecond are not divided."""
_UNSEEN: Final = timedelta(minutes=1)
_UNTOLD: Final = ("args", "kwargs", "call_data", "result", "envelope", "progress")
"""What no event tells, and may be large."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """A span of time: from `since` on, and before `until`."""

    since: datetime
    until: datetime

    def of(self, field: str) -> Q:
        """Return the condition that this field is within it."""
        return Q(**{f"{field}__gte": self.since, f"{field}__lt": self.until})


@dataclass(frozen=True, kw_only=True)
class Which:
    """Which calls are looked at: of these queues and tasks, or this one; all if nothing is named."""

    queues: Collection[str] = ()
    tasks: Collection[str] = ()
    call: UUID | None = None

    @property
    def chooses(self) -> bool:
        """Whether it leaves any out."""
        return bool(self.queues or self.tasks)

    def choose(self, calls: QuerySet[CallQueue]) -> QuerySet[CallQueue]:
        """Return those of these calls."""
        chosen = calls.filter(queue__in=self.queues) if self.queues else calls
        return chosen.filter(task__in=self.tasks) if self.tasks else chosen


@dataclass(frozen=True, kw_only=True)
class _Settled:
    at: datetime


def settled_at() -> datetime:
    """Return before when nothing more can come: no transaction is open that could have written it."""
    (settled,) = sql.fetch("settled_at", _Settled, {"unseen": _UNSEEN})
    return settled.at


def first_at() -> datetime | None:
    """Return when the oldest call that is kept was sent."""
    return CallQueue.objects.using(conf().database).order_by("id").values_list("created_at", flat=True).first()


def calls_of(which: Which, span: Span) -> Iterator[CallQueue]:
    """Return the calls to which something happened in a span; one may come more than once."""
    if which.call is not None:
        yield from _calls().filter(id=which.call)
        return
    calls = which.choose(_calls())
    began = span.of("created_at") | span.of("started_at")
    # Which ended later may have begun, or failed, within the span.
    ended = Q(finished_at__lt=span.until) | began | ~Q(errors=[])
    calls = calls.filter(created_at__lt=span.until)
    found = (
        calls.filter(span.of("created_at"), state__in=WAITING),
        calls.filter(began, state__in=IN_FLIGHT),
        _ended(calls).filter(ended, finished_at__gte=span.since),
        _failed(calls, span.since),
    )
    yield from chain.from_iterable(rows.iterator() for rows in found)


def crowded_at(which: Which, span: Span) -> datetime | None:
    """Return where to divide a span so that few rows tell of its first part; None: few tell of all of it."""
    calls, database = which.choose(_calls()), conf().database
    ended = _ended(calls).filter(finished_at__gte=span.since)
    workflows = Workflow.objects.using(database)
    kinds: tuple[tuple[QuerySet[Any], str], ...] = (
        (calls.filter(state__in=WAITING), "created_at"),
        (ended, "created_at"),
        (ended, "started_at"),
        (ended, "finished_at"),
        (_entries(which), "at"),
        (workflows, "created_at"),
        (workflows, "ended_at"),
    )
    ends: list[datetime] = []
    for rows, field in kinds:
        in_order = rows.filter(span.of(field)).order_by(field).values_list(field, flat=True)
        ends += in_order[CROWD : CROWD + 1]
    # Ids of events tell milliseconds apart, and no less.
    return min(max(min(ends), span.since + timedelta(milliseconds=1)), span.until) if ends else None


def latest_calls(which: Which, most: int) -> Iterator[CallQueue]:
    """Return the calls to which something happened last: so many of each kind, and those in flight."""
    if which.call is not None:
        yield from _calls().filter(id=which.call)
        return
    calls = _calls()
    found = {row.id: row for row in _latest(calls, "id", which, most)}
    for state in TERMINAL:
        found |= {row.id: row for row in _latest(_ended(calls).filter(state=state), "finished_at", which, most)}
    found |= {row.id: row for row in which.choose(calls).filter(state__in=IN_FLIGHT)[:LATEST]}
    yield from found.values()


def entries_of(which: Which, span: Span) -> Iterator[JournalEntry]:
    """Return what was written into the journal in a span."""
    yield from _entries(which).filter(span.of("at")).iterator()


def latest_entries(which: Which, most: int) -> Iterator[JournalEntry]:
    """Return what was written into the journal last."""
    yield from _entries(which).order_by("-at")[:most]


def workflows_of(span: Span) -> Iterator[Workflow]:
    """Return the workflows to which something happened in a span."""
    database = conf().database
    all_there = Workflow.objects.using(database)
    done = _ended(CallQueue.objects.using(database)).filter(span.of("finished_at"), state=State.COMPLETED)
    parts = Part.objects.using(database).filter(call__isnull=False, call__in=done.values("id"))
    found = {
        *all_there.filter(span.of("created_at")).values_list("id", flat=True),
        *all_there.filter(span.of("ended_at")).values_list("id", flat=True),
        *parts.values_list("workflow_id", flat=True),
    }
    yield from all_there.filter(id__in=found).prefetch_related("parts").iterator(chunk_size=LATEST)


def latest_workflows(most: int) -> Iterator[Workflow]:
    """Return the workflows that were begun last."""
    yield from Workflow.objects.using(conf().database).order_by("-id").prefetch_related("parts")[:most]


def steps_of(workflow: Workflow) -> dict[UUID, CallQueue]:
    """Return the calls of the parts of a workflow that are still there."""
    return _calls().in_bulk([part.call for part in workflow.parts.all() if part.call is not None])


def workers() -> Iterator[Worker]:
    """Return Celery's workers, of which there are few, the latest first."""
    yield from Worker.objects.using(conf().database).order_by("-started_at")[:LATEST]


def posts_among(calls: Collection[str], task: str) -> set[str]:
    """Return which of these calls are of this task."""
    found = CallQueue.objects.using(conf().database).filter(id__in=calls, task=task)
    return {str(number) for number in found.values_list("id", flat=True)}


def _calls() -> QuerySet[CallQueue]:
    return CallQueue.objects.using(conf().database).defer(*_UNTOLD)


def _ended(calls: QuerySet[CallQueue]) -> QuerySet[CallQueue]:
    # Both are named so that the index of ended calls serves it.
    return calls.filter(state__in=TERMINAL, finished_at__isnull=False)


def _failed(calls: QuerySet[CallQueue], since: datetime) -> QuerySet[CallQueue]:
    """Return the calls that go on after a failure since then, or in the same second."""
    # The time is a text in JSON, in the zone of the session that wrote it.
    zone = ZoneInfo(sql.connection().timezone_name)
    second = since.astimezone(zone).isoformat(timespec="seconds")[: len("2030-01-01T12:00:00")]
    failed = calls.filter(error__isnull=False, finished_at__isnull=True)
    return failed.alias(failed_at=KT("error__occurred_at")).filter(failed_at__gte=second)


def _latest(calls: QuerySet[CallQueue], field: str, which: Which, most: int) -> QuerySet[CallQueue]:
    if which.chooses:
        oldest: Any = calls.order_by(f"-{field}").values_list(field, flat=True)[_SEARCHED : _SEARCHED + 1].first()
        calls = which.choose(calls if oldest is None else calls.filter(**{f"{field}__gt": oldest}))
    return calls.order_by(f"-{field}")[:most]


def _entries(which: Which) -> QuerySet[JournalEntry]:
    entries = JournalEntry.objects.using(conf().database)
    if which.call is not None:
        # Named so that the index of jobs serves it.
        return entries.alias(job=KT("data__job_id")).filter(job=str(which.call))
    return entries.filter(queue__in=which.queues) if which.queues else entries
