"""Admit: give waiting calls their slots, as far as every limit of every key has room. The one way in."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import groupby
from typing import Any
from uuid import UUID

from django.db import transaction

from dispatcher import happenings, journal, sql
from dispatcher.allotment import Allotment, Head, KeyNow, LaneNow, allot
from dispatcher.conf import Conf, conf, queue_grace
from dispatcher.events import call_dropped
from dispatcher.models import CallQueue, Slot
from dispatcher.policy import Pace, Use, in_force
from dispatcher.states import OnLimit, State

_PULLED_LANES = 10
"""How many lanes of a queue a pass takes at the least for who fetches from it: the first of them may be limited."""
_AT_ONCE = 32
"""How many passes and senders may decide on one queue at the same moment without exceeding its bound."""


@dataclass(frozen=True, kw_only=True)
class Admitted:
    """A call that has its slots and its ticket, and is to be published."""

    id: UUID
    ticket: UUID
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    call_data: dict[str, Any] | None
    queue: str
    attempt: int


@dataclass(frozen=True, kw_only=True)
class Pass:
    """What one pass decided and did."""

    calls: Sequence[Admitted] = ()
    made: Allotment = field(default_factory=Allotment)
    full: Mapping[int, int] = field(default_factory=dict)
    """Keys that a lack of concurrency closed, with the cost that they held when it did."""
    filled: Collection[str] = ()
    """Queues with enough calls on the way to their workers."""

    @property
    def has_moved(self) -> bool:
        """Whether it changed anything: a call admitted, put off or dropped, or a lane parked or held."""
        made = self.made
        return bool(made.admitted or made.dropped or made.rescheduled or made.parked or made.held)


@dataclass(frozen=True, kw_only=True)
class Again:
    """Where the next pass should look."""

    lanes: list[int]
    """Lanes that have calls left, or got some while the pass decided."""
    keys: list[int]
    """Keys with room for lanes that are parked on them."""
    queues: list[str] = field(default_factory=list)
    """Queues with room for lanes that they have held."""


@dataclass(frozen=True, kw_only=True)
class Openable:
    """Keys that a release may have opened, whether any lane is awake, and the queue if it wants more."""

    keys: list[int]
    has_awake: bool
    queues: list[str]


@dataclass(frozen=True, kw_only=True)
class _Lane:
    id: int


@dataclass(frozen=True, kw_only=True)
class _Locked:
    lanes: list[int]
    keys: list[int]
    tight: list[str]


@dataclass(frozen=True, kw_only=True)
class _QueueRow:
    name: str
    unclaimed: int
    is_served: bool


@dataclass(frozen=True, kw_only=True)
class _KeyRow:
    id: int
    name: str
    is_paused: bool
    blocked_until: datetime | None
    next_start_at: datetime | None
    concurrency: int | None
    rate_limit: int | None
    rate_period: timedelta | None
    throttle_limit: int | None
    throttle_period: timedelta | None
    override_until: datetime | None
    override_concurrency: int | None
    override_rate_limit: int | None
    override_rate_period: timedelta | None
    override_throttle_limit: int | None
    override_throttle_period: timedelta | None
    held: int
    unstarted: int
    start_at: list[datetime]
    start_cost: list[int]


@dataclass(frozen=True, kw_only=True)
class _HeadRow:
    now: datetime
    lane_id: int
    queue: str
    priority: int
    on_limit: str
    key_ids: list[int]
    parked_on: int | None
    is_outranked: bool
    is_behind: bool
    call_id: UUID | None
    costs: dict[str, int] | None


@dataclass(frozen=True, kw_only=True)
class _Dropped:
    id: UUID
    key: str


def admit(
    *,
    lanes: Collection[int] = (),
    keys: Collection[int] = (),
    queues: Collection[str] = (),
    awake: bool = False,
    most: int | None = None,
    is_pull: bool = False,
    now: datetime | None = None,
) -> Pass:
    """Make one pass over these lanes, those parked on these keys, held by these queues, and, if `awake`, those awake.

    most: how many calls it admits, and how many lanes of a kind it takes, at the most; the settings' by default.
    is_pull: the pass is for who fetches calls over HTTP, and starts them at once.
    """
    settings = conf()
    with sql.own_transaction():
        return _decide(lanes, keys, queues, awake=awake, most=most, is_pull=is_pull, now=now, settings=settings)


def look_again(done: Pass, *, now: datetime | None = None) -> Again:
    """See, after the commit of a pass, what changed while it decided."""
    made = done.made
    if not (made.asleep or done.full or made.roomy or done.filled):
        return Again(lanes=made.awake, keys=[])
    params = {
        "asleep": made.asleep,
        "full": list(done.full),
        "held": list(done.full.values()),
        "roomy": made.roomy,
        "filled": list(done.filled),
        "ahead": bound(conf()),
        "now": now,
    }
    with sql.together():
        asked = sql.ask("look_again", Again, params)
    again = asked.row()
    return Again(lanes=[*made.awake, *again.lanes], keys=again.keys, queues=again.queues)


def unparked(lanes: Collection[int]) -> list[int]:
    """Return those of these lanes that neither a key nor their queue holds up: they want a pass."""
    return [lane.id for lane in sql.fetch("unparked_lanes", _Lane, {"lanes": list(lanes)})]


def openable(keys: Collection[int], lane: int | None = None, *, now: datetime | None = None) -> Openable:
    """Say which of these keys a release in this lane may have opened for lanes parked on them."""
    params = {"keys": list(keys), "lane": lane, "ahead": bound(conf()), "now": now}
    (found,) = sql.fetch("openable_keys", Openable, params)
    return found


def bound(settings: Conf) -> int:
    """Return up to how many calls of a queue a pass lets go on their way; the rest is for lone senders."""
    return settings.dispatch_ahead - _AT_ONCE if settings.dispatch_ahead > 2 * _AT_ONCE else settings.dispatch_ahead


def keys_of(call_id: UUID) -> dict[int, str]:
    """Return the keys that a call in flight holds slots of, with their names."""
    held = Slot.objects.using(conf().database).filter(call=call_id, key__isnull=False)
    return dict(held.values_list("key_id", "key__name"))


def _decide(
    lanes: Collection[int],
    keys: Collection[int],
    queues: Collection[str],
    *,
    awake: bool,
    most: int | None,
    is_pull: bool,
    now: datetime | None,
    settings: Conf,
) -> Pass:
    lane_limit = min(most or settings.lanes_per_pass, settings.lanes_per_pass)
    batch = min(most or settings.batch, settings.batch)
    if is_pull:
        lane_limit = max(lane_limit, _PULLED_LANES)
    gate = {"is_gated": queue_grace() is not None, "is_pull": is_pull, "ahead": bound(settings), "now": now}
    wanted = {"lanes": list(lanes), "keys": list(keys), "queues": list(queues), "awake": awake, "most": lane_limit}
    (locked,) = sql.fetch("lock_lanes", _Locked, {**wanted, **gate, "slack": _AT_ONCE * batch})
    if not locked.lanes:
        if keys:
            sql.ask("close_openings", object, {"keys": list(keys)})
        return Pass()
    heads = -(-batch // len(locked.lanes)) + 1
    keys_asked = sql.ask("look_keys", _KeyRow, {"keys": locked.keys, "now": now, "margin": settings.margin})
    queues_asked = sql.ask("look_queues", _QueueRow, {"lanes": locked.lanes, **gate})
    lanes_asked = sql.ask("look_lanes", _HeadRow, {"lanes": locked.lanes, "heads": heads, "now": now})
    key_rows, head_rows = keys_asked.rows(), lanes_asked.rows()
    at = head_rows[0].now
    counted = {row.id: _key(row, at) for row in key_rows}
    names = {row.name: row.id for row in key_rows}
    queue_rows = queues_asked.rows()
    # Who fetches a call starts it when the answer comes, and can't wait for a start that lies ahead.
    horizon = timedelta(0) if is_pull else settings.horizon
    pace = Pace(horizon=horizon, margin=settings.margin, ramp=settings.ramp)
    made = allot(
        lanes_now := list(_lanes(head_rows, names, heads)),
        counted.values(),
        queues={
            row.name: (batch if row.is_served else 0)
            if is_pull
            else _queue_room(row, is_tight=row.name in locked.tight, settings=settings)
            for row in queue_rows
        },
        now=at,
        pace=pace,
        batch=batch,
        reschedule_after=settings.reschedule_after,
    )
    slots = _slots(made, lanes_now)
    calls = _write(made, slots, lanes_now, now, settings)
    if opened := [key for key in keys if key not in made.openings]:
        sql.ask("close_openings", object, {"keys": opened})
    if journal.is_kept():
        journal.note([*happenings.of_pass(made, lanes_now, happenings.stand(counted.values(), slots, at, pace))])
    filled = {row.name for row in queue_rows if row.is_served and not is_pull}.intersection(made.held.values())
    return Pass(made=made, calls=calls, full=_full(made, counted, slots), filled=filled)


def _queue_room(row: _QueueRow, *, is_tight: bool, settings: Conf) -> int:
    """Return how many calls more a queue takes; a pass that is not alone with it takes a share."""
    if not row.is_served:
        return 0
    room = max(0, bound(settings) - row.unclaimed)
    return room if is_tight else room // _AT_ONCE


def _key(row: _KeyRow, now: datetime) -> KeyNow:
    return KeyNow(
        id=row.id,
        name=row.name,
        policy=in_force(row, now),
        use=Use(
            held=row.held,
            unstarted=row.unstarted,
            starts=tuple(zip(row.start_at, row.start_cost, strict=True)),
            next_start_at=row.next_start_at,
        ),
        is_paused=row.is_paused,
        blocked_until=row.blocked_until,
    )


def _lanes(rows: Iterable[_HeadRow], names: Mapping[str, int], heads: int) -> Iterable[LaneNow]:
    key_ids = set(names.values())
    for _, group in groupby(rows, key=lambda row: row.lane_id):
        calls = list(group)
        lane = calls[0]
        queue_key = names.get(f"queue:{lane.queue}")
        found = [call for call in calls if call.call_id is not None]
        yield LaneNow(
            id=lane.lane_id,
            queue=lane.queue,
            priority=lane.priority,
            on_limit=OnLimit(lane.on_limit),
            # A key that was deleted limits nothing any more.
            key_ids=sorted({*lane.key_ids, *([queue_key] if queue_key else [])} & key_ids),
            heads=[
                Head(
                    call_id=call.call_id,
                    costs={names[name]: cost for name, cost in (call.costs or {}).items() if name in names},
                )
                for call in found
                if call.call_id is not None
            ],
            has_more=len(found) == heads,
            parked_on=lane.parked_on,
            is_outranked=lane.is_outranked,
            is_behind=lane.is_behind,
        )


def _slots(made: Allotment, lanes: Iterable[LaneNow]) -> list[tuple[UUID, int | None, int]]:
    """Return the slots of the admitted calls as (call, key, cost); a call without keys has one without a key."""
    admitted = set(made.admitted)
    return [
        (head.call_id, key_id, head.costs.get(key_id, 1) if key_id else 1)
        for lane in lanes
        for head in lane.heads
        if head.call_id in admitted
        for key_id in lane.key_ids or (None,)
    ]


def _write(
    made: Allotment,
    slots: Sequence[tuple[UUID, int | None, int]],
    lanes: Sequence[LaneNow],
    now: datetime | None,
    settings: Conf,
) -> list[Admitted]:
    if made.dropped:
        calls, keys = zip(*made.dropped, strict=True)
        params = {"calls": list(calls), "keys": list(keys), "waiting": State.AVAILABLE.value, "now": now}
        dropped = sql.fetch("drop_calls", _Dropped, params)
        transaction.on_commit(partial(_tell_dropped, dropped), using=settings.database, robust=True)
    if made.rescheduled:
        calls, times = zip(*made.rescheduled, strict=True)
        sql.change("reschedule_calls", {"calls": list(calls), "at": list(times), "waiting": State.AVAILABLE.value})
    turn_of = {call: turn for turn, call in enumerate(made.admitted)}
    turns = {lane.id: max((turn_of.get(head.call_id, -1) for head in lane.heads), default=-1) for lane in lanes}
    lane_ids = [*made.awake, *made.asleep, *made.parked, *made.held]
    awake = set(made.awake)
    key_ids = sorted({*made.openings, *(key for _, key, _ in slots if key is not None)})
    return sql.fetch(
        "admit_calls",
        Admitted,
        {
            "now": now,
            "waiting": State.AVAILABLE.value,
            "calls": made.admitted,
            "lease": settings.dispatch_lease,
            "slot_call": [call for call, _, _ in slots],
            "slot_key": [key for _, key, _ in slots],
            "slot_cost": [cost for _, _, cost in slots],
            "lane": lane_ids,
            "lane_awake": [lane in awake for lane in lane_ids],
            "lane_parked": [made.parked.get(lane) for lane in lane_ids],
            "lane_held": [lane in made.held for lane in lane_ids],
            "lane_turn": [turn if (turn := turns[lane]) >= 0 else None for lane in lane_ids],
            "key": key_ids,
            "key_stopped": [key in made.openings for key in key_ids],
            "key_opens": [made.openings.get(key) for key in key_ids],
        },
    )


def _tell_dropped(dropped: Sequence[_Dropped]) -> None:
    for call in dropped:
        call_dropped.send(sender=CallQueue, call_id=call.id, key=call.key)


def _full(
    made: Allotment, counted: Mapping[int, KeyNow], slots: Iterable[tuple[UUID, int | None, int]]
) -> dict[int, int]:
    """Keys with a concurrency limit that lanes were parked on, and the cost that they hold after this pass."""
    held = {
        key: counted[key].use.held for key in set(made.parked.values()) if counted[key].policy.concurrency is not None
    }
    for _, key, cost in slots:
        if key in held:
            held[key] += cost
    return held
