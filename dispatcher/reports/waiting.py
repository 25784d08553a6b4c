"""Why a call waits: what was found, and in a sentence that the admin, the command and the HTTP API show alike."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from dispatcher import sql
from dispatcher.conf import conf, counting
from dispatcher.models import CallQueue
from dispatcher.states import Delivery, State

MANY: Final = 10_000
"""How far calls are counted."""


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Why a call waits: what stopped its lane, if something did, and how many of the lane go before it."""

    oversized_for: str | None
    """The key whose limits in force never allow its cost: the call waits alone, and its lane goes on."""
    oversized_cost: int | None
    """What it costs of that key."""
    stopped_by: str | None
    """The key that its lane is parked on."""
    members: int | None
    """If that key is a group, how many keys it could choose."""
    has_room: bool
    """Whether that key has room by now: the lane's turn comes."""
    opens_at: datetime | None
    """When time alone opens that key."""
    limited_by: str | None
    """A key with a limit per worker, if the lane waits for a worker that holds less of it."""
    delivery: str
    """How the calls of the queue reach workers."""
    is_served: bool
    """Whether a live Celery worker serves the call's queue."""
    is_worker_idle: bool
    """Whether a live worker that takes the calls of the queue directly is idle."""
    is_full: bool
    """Whether enough calls of the queue are on the way to its workers."""
    queue: str
    task: str
    is_known: bool
    """Whether a live worker of the queue knows the task, as far as the workers have registered their tasks."""
    returns: int
    """How often in a row it was published and came back without a start."""
    until: datetime | None
    """When a call that came back is tried again, unless a worker that knows its task comes before."""
    since: datetime
    is_placed: bool
    """Whether it has a lane; else its keys or its lane are still to be made."""
    ahead: int
    """Counted up to MANY."""
    at: datetime


def why_waiting(call: UUID, *, now: datetime | None = None) -> Wait | None:
    """Return why a call waits; None if it does not wait."""
    params = {"call": call, "most": MANY, "ahead": conf().dispatch_ahead, **counting(), "now": now}
    found = sql.fetch("report_wait", Wait, params)
    return found[0] if found else None


def why_in_words(call: UUID) -> str | None:
    """Return in a sentence why a call waits, for room or for its time; None if it does not wait."""
    if (wait := why_waiting(call)) is not None:
        return sentence(wait)
    timed = CallQueue.objects.filter(id=call, state__in=[State.SCHEDULED, State.RETRYABLE])
    at = timed.values_list("scheduled_at", flat=True).first()
    return None if at is None else f"It waits for its time, {_shown(at.astimezone(UTC))}."


def sentence(wait: Wait) -> str:
    """Return the strongest of the reasons that hold: the call's own, those of its lane's keys, then its queue's."""
    ahead = f"{wait.ahead:,} of its lane start before it" if wait.ahead else "it is the first of its lane"
    since = f"Waiting since {_shown(wait.since)}."
    return next(reason for of in (_call, _stop, _limit, _queue) for reason in of(wait, ahead, since))


def _call(wait: Wait, _: str, since: str) -> Iterator[str]:
    if wait.is_served and not wait.is_known:
        yield f"No live worker of queue {wait.queue} has the task {wait.task}. The call continues when one starts."
    if wait.until is not None:
        yield (
            f"It was published and came back without a start {wait.returns:,} times: its workers do not have its task, "
            f"or run without the dispatcher. It is published again at {_shown(wait.until)}."
        )
    if wait.oversized_for:
        yield (
            f"It costs {wait.oversized_cost:,} of the key {wait.oversized_for}, whose limits never allow it. It waits "
            f"alone, since {_shown(wait.since)}, until they are raised or it is cancelled."
        )
    if not wait.is_placed:
        yield (
            "Its lane does not exist yet: its sender or the next tick creates it, after the open transaction that made "
            f"one of its keys. {since}"
        )


def _stop(wait: Wait, ahead: str, since: str) -> Iterator[str]:
    key, opens = wait.stopped_by, f", until {_shown(wait.opens_at)}" if wait.opens_at else ""
    if key and wait.members == 0:
        yield f"No key matches {key}: declare one, or cancel the call; {ahead}. {since}"
    if key and wait.has_room:
        yield f"The key {key} has room again, and its lane is next; {ahead}. {since}"
    if key and wait.members:
        members = f"none of the {wait.members:,} keys that match has room"
        yield f"{key} stops its lane: {members}{opens}; {ahead}. {since}"
    if key:
        yield f"The key {key} stops its lane{opens}; {ahead}. {since}"


def _limit(wait: Wait, ahead: str, _: str) -> Iterator[str]:
    if wait.limited_by and wait.delivery == Delivery.BROKER:
        yield (
            f"The key {wait.limited_by} has a limit per worker, which can't be kept: the broker delivers the queue "
            f"{wait.queue}. Deliver it directly or over HTTP, or remove per_worker from the key."
        )
    if wait.limited_by:
        yield (
            f"It waits for a worker of {wait.queue} that is free and holds less of the key {wait.limited_by} than one "
            f"worker may; over HTTP, for one with a worker_id. {ahead.capitalize()}."
        )


def _queue(wait: Wait, ahead: str, since: str) -> Iterator[str]:
    queue = wait.queue
    if wait.delivery == Delivery.HTTP:
        yield f"It waits until a worker fetches it over HTTP from the queue {queue}; {ahead}."
    if not wait.is_served:
        yield f"No live worker serves the queue {queue}: start one with -Q {queue}. {since}"
    if wait.delivery == Delivery.DIRECT:
        idle, busy = "A free worker of the queue {} takes it next", "All worker processes of the queue {} are busy"
        yield f"{(idle if wait.is_worker_idle else busy).format(queue)}; {ahead}."
    if wait.is_full:
        yield f"The queue {queue} has enough calls on the way to its workers; {ahead}."
    yield f"The next tick serves its lane; {ahead}. {since}"


def _shown(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
