"""Push: send calls that may be unique, to queues that may be full. All of them, or none."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from uuid import UUID

from django.db import IntegrityError

from dispatcher import api, engine, event_log, lanes, sql
from dispatcher.conf import conf
from dispatcher.engine import compose
from dispatcher.errors import CallInvalid, DuplicateCall, PolicyInvalid, QueueFull, UnknownKey
from dispatcher.event_log import Entry
from dispatcher.lanes import heads
from dispatcher.lifecycle import control
from dispatcher.models import CallQueue
from dispatcher.request import Call
from dispatcher.states import OnFull, State

_BESIDE = "another of this batch"


@dataclass(frozen=True, kw_only=True)
class Unique:
    """Of calls with this key, sent within the period and in one of these states, there is one at a time.

    on_conflict: `reject`, `ignore`, `replace` or `replace_except_schedule` (Open Job Spec, ojs-unique-jobs).
    """

    key: str
    states: Collection[str]
    period: timedelta | None = None
    on_conflict: str = "reject"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A call that somebody wants to send, to a queue that is named."""

    call: Call
    queue: str
    unique: Unique | None = None


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """A call that is there now; `is_new`: this push sent it. With how full its queue is, if that is bounded."""

    call: CallQueue
    is_new: bool
    bound: "Bound | None" = None


@dataclass(frozen=True, kw_only=True)
class Bound:
    """How many calls may wait in a queue, and how many do."""

    name: str
    max_depth: int
    on_full: str
    warn_at: float
    depth: int = 0

    @property
    def is_nearly_full(self) -> bool:
        """Whether it is time to warn."""
        return self.depth >= self.warn_at * self.max_depth

    def entry(self, kind: str) -> Entry:
        """Return this as an entry of the journal."""
        return Entry(kind=kind, queue=self.name, data={"depth": self.depth, "bound": self.max_depth})


@dataclass(frozen=True, kw_only=True)
class _Found:
    id: UUID
    queue: str
    state: str


@dataclass(frozen=True, kw_only=True)
class _Crowded:
    name: str


@dataclass(frozen=True, kw_only=True)
class _Count:
    calls: int


def push(wanted: Sequence[Wanted], *, may_send: Callable[[str], bool] = lambda _: False) -> list[Pushed]:
    """Send calls, all or none. Raises CallInvalid or PolicyInvalid naming the field, DuplicateCall or QueueFull.

    may_send: whether the sender may send to a queue that none of its calls names. A call that is there already in
    another queue is neither returned, ended nor shown.
    """
    bounded = sql.fetch("queue_bounds", Bound, {"names": sorted({each.queue for each in wanted}), "is_lock": False})
    if not (bounded or any(each.unique or each.call.more.id for each in wanted)):
        return [Pushed(call=call, is_new=True) for call in api.send_many([each.call for each in wanted])]
    try:
        with sql.atomic():
            return _push(wanted, may_send)
    except IntegrityError as error:
        raise _same_id(wanted, may_send) from error


def faults(wanted: Sequence[Wanted]) -> dict[int, CallInvalid | PolicyInvalid]:
    """Return what can be known to be wrong with calls that are sent later, by their places.

    A key may be made by any of them: one may be sent after another.
    """
    found: dict[int, CallInvalid | PolicyInvalid] = {}
    drafts = {}
    for number, each in enumerate(wanted):
        try:
            drafts[number] = compose.check(replace(each.call, queue=each.queue))
        except (CallInvalid, PolicyInvalid) as error:
            found[number] = error
    made = {name for draft in drafts.values() for name in draft.policies}
    unknown = lanes.unknown_keys({name for draft in drafts.values() for name in draft.kind.names} - made)
    for number, draft in drafts.items():
        if names := sorted(unknown.intersection(draft.kind.names)):
            found[number] = UnknownKey(names)
    return found


def _push(wanted: Sequence[Wanted], may_send: Callable[[str], bool]) -> list[Pushed]:
    kept, replaced = _resolve(wanted, may_send)
    fresh = {number: each for number, each in enumerate(wanted) if number not in kept}
    bounds = _make_room([*fresh.values()])
    sent = iter(api.send_many([_rescheduled(each, replaced.get(number)) for number, each in fresh.items()]))
    pushed = []
    for number, each in enumerate(wanted):
        there = kept.get(number)
        call = there if there is not None else next(sent)
        pushed.append(Pushed(call=call, is_new=there is None, bound=bounds.get(each.queue)))
    return pushed


def _resolve(wanted: Sequence[Wanted], may_send: Callable[[str], bool]) -> tuple[dict[int, CallQueue], dict[int, UUID]]:
    """Return the calls that are there in place of those that ask for it, and those that were ended to be replaced."""
    keys = [each.unique.key for each in wanted if each.unique]
    if not keys:
        return {}, {}
    if twice := [key for key, count in Counter(keys).items() if count > 1]:
        raise DuplicateCall(_BESIDE, State.AVAILABLE, twice[0])
    sql.change("lock_unique", {"names": keys})
    kept: dict[int, CallQueue] = {}
    replaced: dict[int, UUID] = {}
    for number, each in enumerate(wanted):
        if (unique := each.unique) is None:
            continue
        params = {"unique_key": unique.key, "states": _stored(unique.states), "period": unique.period}
        for found in sql.fetch("find_unique", _Found, params):
            if found.queue != each.queue and not may_send(found.queue):
                raise DuplicateCall(unique_key=unique.key)
            if unique.on_conflict == "ignore":
                kept[number] = CallQueue.objects.using(conf().database).get(id=found.id)
            elif not unique.on_conflict.startswith("replace") or not _cancel(found.id):
                raise DuplicateCall(str(found.id), shown(found.state), unique.key)
            else:
                replaced[number] = found.id
    return kept, replaced


def _cancel(call: UUID) -> bool:
    done = control.cancel([call])
    sql.after_commit(partial(engine.dispense_briefly, lanes=done.lanes, keys=done.keys))
    return bool(done.calls)


def _rescheduled(each: Wanted, before: UUID | None) -> Call:
    """Return the call with the time of the one that it replaces, if it asks for that."""
    if before is None or each.unique is None or each.unique.on_conflict != "replace_except_schedule":
        return each.call
    at = CallQueue.objects.using(conf().database).values_list("scheduled_at", flat=True).get(id=before)
    return replace(each.call, scheduled_at=at) if at else each.call


def _make_room(fresh: Sequence[Wanted]) -> dict[str, Bound]:
    """Count what waits in the queues that are bounded, make room where a queue drops its oldest. Raises QueueFull."""
    queues = Counter(each.queue for each in fresh)
    bounds = {}
    for bound in sql.fetch("queue_bounds", Bound, {"names": list(queues), "is_lock": True}):
        (count,) = sql.fetch("count_waiting", _Count, {"queue": bound.name, "most": bound.max_depth})
        over = count.calls + queues[bound.name] - bound.max_depth
        if over > 0 and not (bound.on_full == OnFull.DROP_OLDEST and _drop_oldest(bound.name, over)):
            tasks = [str(each.call.task) for each in fresh if each.queue == bound.name]
            raise QueueFull(bound.name, count.calls, bound.max_depth, bound.on_full, tasks)
        before = replace(bound, depth=count.calls)
        bounds[bound.name] = after = replace(bound, depth=min(count.calls + queues[bound.name], bound.max_depth))
        if after.is_nearly_full and not before.is_nearly_full:
            event_log.note([after.entry("backpressure.warning")])
    return bounds


def _drop_oldest(queue: str, count: int) -> bool:
    """Discard the calls that have waited longest; return whether there were so many."""
    dropped = sql.fetch("drop_oldest", heads.Place, {"queue": queue, "most": count})
    sql.after_commit(partial(engine.serve_changed, heads.first(dropped)))
    return len(dropped) == count


def ease() -> int:
    """Note the queues that were nearly full and are not any more; return how many (backpressure.cleared)."""
    if not event_log.is_kept():
        return 0
    named = {queue.name: queue for queue in sql.fetch("crowded_queues", _Crowded, {})}
    cleared = []
    for bound in sql.fetch("queue_bounds", Bound, {"names": sorted(named), "is_lock": False}):
        (count,) = sql.fetch("count_waiting", _Count, {"queue": bound.name, "most": bound.max_depth})
        now = replace(bound, depth=count.calls)
        if not now.is_nearly_full:
            cleared.append(now.entry("backpressure.cleared"))
    event_log.note(cleared)
    return len(cleared)


def _same_id(wanted: Sequence[Wanted], may_send: Callable[[str], bool]) -> DuplicateCall:
    queues = {each.call.more.id: each.queue for each in wanted if each.call.more.id}
    there = CallQueue.objects.using(conf().database).filter(id__in=queues).first()
    if there is None:
        return DuplicateCall(str(next(iter(queues))), State.AVAILABLE)
    if there.queue != queues[there.id] and not may_send(there.queue):
        return DuplicateCall()
    return DuplicateCall(str(there.id), shown(there.state))


def shown(state: str) -> str:
    """Return a state as the Open Job Spec knows it."""
    return State.ACTIVE.value if state == State.DISPATCHED else str(state)


def _stored(states: Collection[str]) -> list[str]:
    return [*states, *([State.DISPATCHED.value] if State.ACTIVE in states else [])]
