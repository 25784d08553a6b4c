"""The jobs that a request chooses, each found by an index, or in windows of all jobs."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from time import monotonic
from typing import Final
from uuid import UUID

from django.db.models import Q, QuerySet

from dispatcher.conf import conf
from dispatcher.models import CallQueue, Slot
from dispatcher.ojs.pagination import read_cursor, window, write_cursor
from dispatcher.ojs.wire import invalid, read_moment
from dispatcher.states import DUE, TERMINAL, State

MOST: Final = 1_000
"""How many jobs one request moves."""
_LOOKS_S: Final = 0.05
"""How long one request looks for jobs to move."""
_LATEST: Final = ("-id",)
_BY_ID: Final = ("id",)
_ORDERS: Final[Mapping[str, tuple[Sequence[str], Q]]] = {
    **dict.fromkeys(TERMINAL, (("-finished_at", "-id"), Q(finished_at__isnull=False))),
    **dict.fromkeys(DUE, (("queue", "scheduled_at", "id"), Q(state__in=DUE))),
    State.PENDING: (("queue", "id"), Q()),
}
"""The order of the index of a state's calls, and the condition of that index."""


def listed(given: dict[str, str]) -> tuple[QuerySet[CallQueue], Sequence[str], QuerySet[CallQueue] | None]:
    """Return the calls that a request asks for, the order of an index for them, and the calls that this index reads."""
    calls, everything = filtered(given), CallQueue.objects.using(conf().database).all()
    named = {name for name in ("queue", "state", "type", "since", "until") if given.get(name)}
    state = given.get("state") or ""
    if state == State.ACTIVE:
        held = Slot.objects.using(conf().database).values("call_id")
        return calls.filter(id__in=held), _LATEST, None
    if state not in _ORDERS:
        return calls, _LATEST, everything if named else None
    order, condition = _ORDERS[state]
    in_state = everything.filter(condition, state=state)
    in_state = in_state.filter(queue=given["queue"]) if "queue" in named else in_state
    return calls.filter(condition), order, None if named <= {"state", "queue"} else in_state


def filtered(given: dict[str, str]) -> QuerySet[CallQueue]:
    """Return the calls that a filter names, in no order. Raises Problem."""
    calls = CallQueue.objects.using(conf().database).all()
    if queue := given.get("queue"):
        calls = calls.filter(queue=queue)
    if state := given.get("state"):
        if state not in [*State]:
            raise invalid("state", f"{state!r} must be one of {', '.join(State)}.")
        calls = calls.filter(state__in=["active", "dispatched"] if state == State.ACTIVE else [state])
    if kind := given.get("type"):
        calls = calls.filter(task__startswith=kind[:-1]) if kind.endswith("*") else calls.filter(task=kind)
    for name, lookup in (("since", "created_at__gte"), ("until", "created_at__lte")):
        if at := read_moment(name, given.get(name)):
            calls = calls.filter(**{lookup: at})
    return calls


def ended_of(queue: str, states: Sequence[str], before: datetime | None) -> list[UUID]:
    """Return the calls of a queue that ended first in these states, as many as one request takes."""
    found: list[UUID] = []
    for state in states:
        # Each state by itself, so that the index of a queue's ended calls has them in order.
        ended = CallQueue.objects.using(conf().database).filter(queue=queue, state=state, finished_at__isnull=False)
        ended = ended.filter(finished_at__lt=before) if before else ended
        found += ended.order_by("finished_at").values_list("id", flat=True)[: MOST - len(found)]
    return found


def oldest(calls: QuerySet[CallQueue], cursor: str | None) -> tuple[list[UUID], str | None]:
    """Return the oldest of these calls, as many as one request takes, and where the next one goes on.

    It looks through windows of all calls, in order of id, until it has enough or its time is up.
    """
    until = monotonic() + _LOOKS_S
    after = None if cursor is None else read_cursor(cursor, CallQueue, _BY_ID)
    everything = CallQueue.objects.using(conf().database).all()
    found: list[UUID] = []
    while True:
        part = window(calls, _BY_ID, everything, after=after)
        found += part.rows.values_list("id", flat=True)[: MOST - len(found)]
        if len(found) == MOST:
            return found, cursor_behind(found[-1])
        if (after := part.last) is None:
            return found, None
        if monotonic() > until:
            return found, write_cursor(after, _BY_ID)


def cursor_behind(call: UUID) -> str:
    """Return where a request goes on that has moved the calls up to this one."""
    return write_cursor([call], _BY_ID)
