"""Queries for jobs: each uses an index, or scans a bounded window of all jobs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from time import monotonic
from typing import Final
from uuid import UUID

from django.db.models import Q, QuerySet

from dispatcher import sql
from dispatcher.models import CallQueue, Slot
from dispatcher.ojs import fields, jobs
from dispatcher.ojs.fields import given_fields
from dispatcher.ojs.pagination import ROW_LIMIT, Page, PageIn, QueryString, paginate, read_cursor, window, write_cursor
from dispatcher.ojs.wire import parse_time, without_nulls
from dispatcher.states import DUE, IN_FLIGHT, TERMINAL, State

MAX_MOVED: Final = 1_000
"""The maximum number of jobs that one request changes."""
_LOOKS_S: Final = 0.05
"""How long one request searches for jobs to change."""
_MINUTE: Final = timedelta(minutes=1)
_LATEST: Final = ("-id",)
_BY_ID: Final = ("id",)
_INDEXES: Final[Mapping[str, tuple[Sequence[str], Q]]] = {
    **dict.fromkeys(TERMINAL, (("-finished_at", "-id"), Q(finished_at__isnull=False))),
    **dict.fromkeys(DUE, (("queue", "scheduled_at", "id"), Q(state__in=DUE))),
    **dict.fromkeys(IN_FLIGHT, (("queue", "state"), Q(state__in=IN_FLIGHT))),
    State.PENDING: (("queue", "id"), Q()),
    State.AVAILABLE: (("queue", "position"), Q(queue__gt="")),
}
"""The index order of the calls in a state, and the condition of that index."""


class LettersIn(QueryString):
    """Which dead letters."""

    queue: str | None = None
    type: str | None = None

    def filter(self, calls: QuerySet[CallQueue]) -> QuerySet[CallQueue]:
        """Return the selected of these calls."""
        return calls.filter(**without_nulls({"queue": self.queue, "task": self.type}))


class JobsIn(LettersIn):
    """Which jobs; a `type` may end in `*`."""

    state: fields.AnyState | None = None
    since: fields.Moment | None = None
    until: fields.Moment | None = None


def list_jobs(wanted: JobsIn) -> tuple[QuerySet[CallQueue], Sequence[str], QuerySet[CallQueue] | None]:
    """Return the requested calls, an index order for them, and the calls that this index scans."""
    given = given_fields(wanted)
    calls, all_calls = filter_jobs(given), CallQueue.objects.all()
    named = given.keys()
    state: str = wanted.state or ""
    if state == State.ACTIVE:
        held = Slot.objects.values("call_id")
        return calls.filter(id__in=held), _LATEST, None
    if state in ("", State.AVAILABLE, State.DISPATCHED):
        return calls, _LATEST, all_calls if named else None
    order, condition = _INDEXES[state]
    in_state = all_calls.filter(condition, state=state)
    in_state = in_state.filter(queue=given["queue"]) if "queue" in named else in_state
    return calls.filter(condition), order, None if named <= {"state", "queue"} else in_state


def page(
    wanted: PageIn, calls: QuerySet[CallQueue], *, order: Sequence[str], among: QuerySet[CallQueue] | None, default: int
) -> Page:
    """Return the requested page of calls, with their jobs: as many as an answer has room for; see paginate."""
    found = paginate(
        wanted,
        calls.only(*(name.removeprefix("-") for name in order)),
        order=order,
        among=among,
        default=default,
        fitting=lambda rows: jobs.fitting([call.id for call in rows]),
    )
    return replace(found, rows=jobs.read([call.id for call in found.rows]))


def filter_jobs(given: dict[str, str]) -> QuerySet[CallQueue]:
    """Return the calls that a filter selects, unordered. Raises Problem."""
    calls = CallQueue.objects.all()
    if queue := given.get("queue"):
        calls = calls.filter(queue=queue)
    if state := given.get("state"):
        calls = calls.filter(state__in=["active", "dispatched"] if state == State.ACTIVE else [state])
    if kind := given.get("type"):
        calls = calls.filter(task__startswith=kind[:-1]) if kind.endswith("*") else calls.filter(task=kind)
    for name, lookup in (("since", "created_at__gte"), ("until", "created_at__lte")):
        if at := parse_time(name, given.get(name)):
            calls = calls.filter(**{lookup: at})
    return calls


def count(state: State) -> int:
    """Count the calls in a state, up to ROW_LIMIT, in the order of an index; active ones with those on their way."""
    order, condition = _INDEXES[state]
    condition &= Q() if state == State.ACTIVE else Q(state=state)
    order = order[:1] if state in TERMINAL else order
    return CallQueue.objects.filter(condition).order_by(*order)[:ROW_LIMIT].count()


def count_last_minute(state: State) -> int:
    """Count the calls that ended so in the last minute; above ROW_LIMIT, by how long the latest took."""
    now = sql.now()
    calls = CallQueue.objects.filter(state=state, finished_at__gt=now - _MINUTE).order_by("-finished_at")
    first = calls.values_list("finished_at", flat=True)[ROW_LIMIT - 1 : ROW_LIMIT].first()
    return calls[:ROW_LIMIT].count() if first is None else round(ROW_LIMIT * _MINUTE / (now - first))


def find_in_queue(queue: str, states: Sequence[str], before: datetime | None = None) -> list[UUID]:
    """Return calls of a queue in these states, up to the maximum of one request; of ended ones those that ended first.

    before: only those that ended before then.
    """
    found: list[UUID] = []
    for state in states:
        # One state at a time, so that an index of the queue returns them in order.
        order, condition = _INDEXES[state]
        calls = CallQueue.objects.filter(condition, queue=queue, state=state)
        calls = calls.filter(finished_at__lt=before) if before else calls
        calls = calls.order_by(*(["finished_at"] if state in TERMINAL else order))
        found += calls.values_list("id", flat=True)[: MAX_MOVED - len(found)]
    return found


def find_oldest(calls: QuerySet[CallQueue], cursor: str | None) -> tuple[list[UUID], str | None]:
    """Return the oldest of these calls, up to the maximum of one request, and the cursor of the next request.

    It scans windows of all calls, in order of id, until it has enough calls or its time is up.
    """
    until = monotonic() + _LOOKS_S
    after = None if cursor is None else read_cursor(cursor, CallQueue, _BY_ID)
    all_calls = CallQueue.objects.all()
    found: list[UUID] = []
    while True:
        part = window(calls, _BY_ID, all_calls, after=after)
        found += part.rows.values_list("id", flat=True)[: MAX_MOVED - len(found)]
        if len(found) == MAX_MOVED:
            return found, cursor_after(found[-1])
        if (after := part.last) is None:
            return found, None
        if monotonic() > until:
            return found, write_cursor(after, _BY_ID)


def cursor_after(call: UUID) -> str:
    """Return the cursor of a request that continues after this call."""
    return write_cursor([call], _BY_ID)
