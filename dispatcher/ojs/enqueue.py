"""Enqueue: send calls that may be unique, to queues that may be full; all of them, or none."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final
from uuid import UUID

from django.db import IntegrityError

from dispatcher import api, engine, lanes, sql
from dispatcher.engine import compose
from dispatcher.errors import FieldInvalid, UnknownKey
from dispatcher.lifecycle import control
from dispatcher.models import CallQueue, Queue
from dispatcher.ojs import event_log, jobs
from dispatcher.ojs.errors import DuplicateCall, QueueFull
from dispatcher.ojs.jobs import options_of
from dispatcher.ojs.models import EventLogEntry
from dispatcher.ojs.wire import invalid
from dispatcher.request import Call
from dispatcher.states import Delivery, OnFull, State

_SAME_BATCH = "another of this batch"


@dataclass(frozen=True, kw_only=True)
class Unique:
    """At most one call with this key exists that was sent within the period and is in one of these states.

    on_conflict: `reject`, `ignore`, `replace` or `replace_except_schedule` (Open Job Spec, ojs-unique-jobs).
    """

    key: str
    states: Collection[str]
    period: timedelta | None = None
    on_conflict: str = "reject"


@dataclass(frozen=True, kw_only=True)
class EnqueueRequest:
    """A call to be sent, and its queue."""

    call: Call
    queue: str
    unique: Unique | None = None


@dataclass(frozen=True, kw_only=True)
class Enqueued:
    """The call of a request; `is_new`: this request sent it. `bound`: the depth of its queue, if that was counted."""

    call: CallQueue
    is_new: bool
    bound: "Bound | None" = None


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The bound of a queue, and how many calls wait in it."""

    name: str
    max_depth: int
    on_full: str
    warn_at: float
    most_waiting: int
    """No more calls wait in all queues together."""
    depth: int = 0

    def is_far(self, more: int) -> bool:
        """Return whether the queue can't be nearly full with so many calls more, whatever waits in it."""
        return self.most_waiting + more < self.warn_at * self.max_depth

    @property
    def is_nearly_full(self) -> bool:
        """Whether the depth has reached the warning threshold."""
        return self.depth >= self.warn_at * self.max_depth

    def entry(self, kind: str) -> EventLogEntry:
        """Return this as an entry of the event log."""
        return EventLogEntry(kind=kind, queue=self.name, data={"depth": self.depth, "bound": self.max_depth})


@dataclass(frozen=True, kw_only=True)
class _Found:
    id: UUID
    queue: str
    state: str


def enqueue(wanted: Sequence[EnqueueRequest], *, may_send: Callable[[str], bool] = lambda _: False) -> list[Enqueued]:
    """Send calls, all or none. Raises CallInvalid or PolicyInvalid naming the field, DuplicateCall or QueueFull.

    Creates the rows of queues that are named for the first time.
    may_send: whether the sender may send to a queue that none of its calls names. An existing call in another queue is
    neither returned, cancelled nor named in an error.
    """
    known = create_queues({each.queue for each in wanted}).values()
    if not any(queue.max_depth for queue in known) and not any(
        each.unique or options_of(each.call).id for each in wanted
    ):
        return [Enqueued(call=call, is_new=True) for call in _send([each.call for each in wanted])]
    try:
        with sql.atomic():
            return _enqueue(wanted, may_send)
    except IntegrityError as error:
        raise _duplicate_id(wanted, may_send) from error


def validation_errors(wanted: Sequence[EnqueueRequest]) -> dict[int, FieldInvalid]:
    """Return the errors of calls that are sent later, as far as they are known now, by index.

    Any of the calls can create a key: they may be sent one after another.
    """
    found: dict[int, FieldInvalid] = {}
    drafts = {}
    for number, each in enumerate(wanted):
        try:
            drafts[number] = compose.check(replace(each.call, queue=each.queue))
        except FieldInvalid as error:
            found[number] = error
    made = {name for draft in drafts.values() for name in draft.policies}
    unknown = lanes.unknown_keys({name for draft in drafts.values() for name in draft.kind.names} - made)
    for number, draft in drafts.items():
        if names := sorted(unknown.intersection(draft.kind.names)):
            found[number] = UnknownKey(names)
    return found


def _enqueue(wanted: Sequence[EnqueueRequest], may_send: Callable[[str], bool]) -> list[Enqueued]:
    kept, replaced = _resolve(wanted, may_send)
    fresh = {number: each for number, each in enumerate(wanted) if number not in kept}
    bounds = _make_room([*fresh.values()])
    sent = iter(_send([_rescheduled(each, replaced.get(number)) for number, each in fresh.items()]))
    return [
        Enqueued(call=kept.get(number) or next(sent), is_new=number not in kept, bound=bounds.get(each.queue))
        for number, each in enumerate(wanted)
    ]


def _send(calls: Sequence[Call]) -> list[CallQueue]:
    """Send calls, and return them with their jobs."""
    return [jobs.sent(call, options_of(asked)) for call, asked in zip(api.send_many(calls), calls, strict=True)]


def _resolve(
    wanted: Sequence[EnqueueRequest], may_send: Callable[[str], bool]
) -> tuple[dict[int, CallQueue], dict[int, UUID]]:
    """Return the existing calls that replace requests, by index, and the cancelled calls that requests replace."""
    keys = [each.unique.key for each in wanted if each.unique]
    if not keys:
        return {}, {}
    if twice := [key for key, count in Counter(keys).items() if count > 1]:
        raise DuplicateCall(_SAME_BATCH, State.AVAILABLE, twice[0])
    sql.change("lock_unique", {"names": keys})
    kept: dict[int, CallQueue] = {}
    replaced: dict[int, UUID] = {}
    for number, each in enumerate(wanted):
        if (unique := each.unique) is None:
            continue
        states = {*unique.states, *([State.DISPATCHED.value] if State.ACTIVE in unique.states else [])}
        if (found := find_unique(unique.key, states, unique.period)) is not None:
            if found.queue != each.queue and not may_send(found.queue):
                raise DuplicateCall(unique_key=unique.key)
            if unique.on_conflict == "ignore":
                (kept[number],) = jobs.read([found.id])
            elif not unique.on_conflict.startswith("replace") or not _cancel(found.id):
                raise DuplicateCall(str(found.id), ojs_state(found.state), unique.key)
            else:
                replaced[number] = found.id
    return kept, replaced


def find_unique(key: str, states: Collection[str], period: timedelta | None = None) -> _Found | None:
    """Return the latest call with this unique key; the caller has locked the key."""
    params = {"unique_key": key, "states": list(states), "period": period}
    return next(iter(sql.fetch("find_unique", _Found, params)), None)


def _cancel(call: UUID) -> bool:
    cancelled = control.cancel([call])
    sql.after_commit(engine.dispense_briefly)
    return bool(cancelled)


def _rescheduled(each: EnqueueRequest, before: UUID | None) -> Call:
    """Return the call with the scheduled time of the call that it replaces, if its policy says so."""
    if before is None or each.unique is None or each.unique.on_conflict != "replace_except_schedule":
        return each.call
    at = CallQueue.objects.values_list("scheduled_at", flat=True).get(id=before)
    return replace(each.call, scheduled_at=at) if at else each.call


def _make_room(fresh: Sequence[EnqueueRequest]) -> dict[str, Bound]:
    """Count the calls of bounded queues, and discard the oldest where the queue's policy says so. Raises QueueFull.

    A queue whose bound is far above all that waits is not counted: that costs as much as calls wait in it.
    """
    queues = Counter(each.queue for each in fresh)
    bounds = {}
    for bound in sql.fetch("queue_bounds", Bound, {"names": list(queues)}):
        if bound.is_far(queues[bound.name]):
            continue
        (depth,) = sql.fetch("count_waiting", int, {"queue": bound.name, "most": bound.max_depth})
        over = depth + queues[bound.name] - bound.max_depth
        if over > 0 and not (bound.on_full == OnFull.DROP_OLDEST and _drop_oldest(bound.name, over)):
            tasks = [str(each.call.task) for each in fresh if each.queue == bound.name]
            raise QueueFull(bound.name, depth, bound.max_depth, bound.on_full, tasks)
        before = replace(bound, depth=depth)
        bounds[bound.name] = after = replace(bound, depth=min(depth + queues[bound.name], bound.max_depth))
        if after.is_nearly_full and not before.is_nearly_full:
            event_log.note([after.entry("backpressure.warning")])
    return bounds


def _drop_oldest(queue: str, count: int) -> bool:
    """Discard the oldest waiting calls; return whether there were enough."""
    dropped = sql.fetch("drop_oldest", UUID, {"queue": queue, "most": count})
    sql.after_commit(engine.dispense_briefly)
    return len(dropped) == count


def clear_backpressure() -> int:
    """Record which queues are below their warning threshold again; return how many (backpressure.cleared)."""
    if not event_log.is_kept():
        return 0
    cleared = []
    for bound in sql.fetch("queue_bounds", Bound, {"names": None}):
        (depth,) = sql.fetch("count_waiting", int, {"queue": bound.name, "most": bound.max_depth})
        now = replace(bound, depth=depth)
        if not now.is_nearly_full:
            cleared.append(now.entry("backpressure.cleared"))
    event_log.note(cleared)
    return len(cleared)


def _duplicate_id(wanted: Sequence[EnqueueRequest], may_send: Callable[[str], bool]) -> DuplicateCall:
    queues = {call_id: each.queue for each in wanted if (call_id := options_of(each.call).id)}
    existing = CallQueue.objects.filter(id__in=queues).first()
    if existing is None:
        return DuplicateCall(str(next(iter(queues))), State.AVAILABLE)
    if existing.queue != queues[existing.id] and not may_send(existing.queue):
        return DuplicateCall()
    return DuplicateCall(str(existing.id), ojs_state(existing.state))


def ojs_state(state: str) -> str:
    """Return the Open Job Spec's state for a state."""
    return State.ACTIVE.value if state == State.DISPATCHED else str(state)


QUEUE: Final = re.compile(r"[a-z0-9][a-z0-9.-]{0,127}")
"""A queue's name (ojs-core, section 5.3)."""


def queue_name(value: str) -> str:
    """Return a valid queue name from a path. Raises Problem."""
    if not QUEUE.fullmatch(value):
        raise invalid("queue", f"{value!r} must consist of a-z, 0-9, - and dots, and begin with a letter or a digit.")
    return value


def create_queues(names: Collection[str]) -> Mapping[str, Queue]:
    """Create the rows of queues that are named for the first time, and return those of the others by name."""
    known = _find(names)
    for name in sorted(set(names) - known.keys()):
        lanes.open_queue(name)
    return known


def assign_queues(names: Collection[str]) -> list[str]:
    """Assign undecided queues to workers that fetch; return those that Celery serves."""
    found = _find(names)
    if any(queue.is_undecided for queue in found.values()):
        Queue.objects.filter(name__in=names, is_undecided=True).update(is_undecided=False)
    return [name for name in names if name in found and found[name].delivery != Delivery.HTTP]


def _find(names: Collection[str]) -> dict[str, Queue]:
    return {queue.name: queue for queue in sql.fetch_checked("find_queues", Queue, {"names": list(names)})}
