"""Admit: give waiting calls their slots, as far as every limit of every key has room. The one way in."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import groupby
from typing import Any
from uuid import UUID

from django.db import transaction

from dispatcher import sql
from dispatcher.allotment import Allotment, Head, KeyNow, LaneNow, allot
from dispatcher.conf import Conf, conf
from dispatcher.events import call_dropped
from dispatcher.models import CallQueue, Slot
from dispatcher.policy import Pace, Use, in_force
from dispatcher.states import OnLimit, State


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

    @property
    def has_moved(self) -> bool:
        """Whether it changed anything: a call admitted, put off or dropped, or a lane parked."""
        return bool(self.made.admitted or self.made.dropped or self.made.rescheduled or self.made.parked)


@dataclass(frozen=True, kw_only=True)
class Again:
    """Where the next pass should look."""

    lanes: list[int]
    """Lanes that have calls left, or got some while the pass decided."""
    keys: list[int]
    """Keys with room for lanes that are parked on them."""


@dataclass(frozen=True, kw_only=True)
class Openable:
    """Keys that a release may have opened, and whether any lane is awake."""

    keys: list[int]
    has_awake: bool


@dataclass(frozen=True, kw_only=True)
class _Lane:
    id: int


@dataclass(frozen=True, kw_only=True)
class _Locked:
    lanes: list[int]
    keys: list[int]


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
    is_outranked: bool
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
    awake: bool = False,
    most: int | None = None,
    now: datetime | None = None,
) -> Pass:
    """Make one pass over these lanes, the lanes parked on these keys, and, if `awake`, those that are awake.

    most: how many calls it admits, and how many lanes of a kind it takes, at the most; the settings' by default.
    """
    settings = conf()
    with sql.own_transaction():
        return _decide(lanes, keys, awake=awake, most=most, now=now, settings=settings)


def look_again(done: Pass) -> Again:
    """See, after the commit of a pass, what changed while it decided."""
    made = done.made
    if not (made.asleep or done.full or made.roomy):
        return Again(lanes=made.awake, keys=[])
    params = {
        "asleep": made.asleep,
        "full": list(done.full),
        "held": list(done.full.values()),
        "roomy": made.roomy,
    }
    with sql.together():
        asked = sql.ask("look_again", Again, params)
    again = asked.row()
    return Again(lanes=[*made.awake, *again.lanes], keys=again.keys)


def unparked(lanes: Collection[int]) -> list[int]:
    """Return those of these lanes that no key holds up: they want a pass."""
    return [lane.id for lane in sql.fetch("unparked_lanes", _Lane, {"lanes": list(lanes)})]


def openable(keys: Collection[int], *, now: datetime | None = None) -> Openable:
    """Say which of these keys a release may have opened for lanes parked on them."""
    (found,) = sql.fetch("openable_keys", Openable, {"keys": list(keys), "now": now})
    return found


def keys_of(call_id: UUID) -> dict[int, str]:
    """Return the keys that a call in flight holds slots of, with their names."""
    held = Slot.objects.using(conf().database).filter(call=call_id, key__isnull=False)
    return dict(held.values_list("key_id", "key__name"))


def _decide(
    lanes: Collection[int],
    keys: Collection[int],
    *,
    awake: bool,
    most: int | None,
    now: datetime | None,
    settings: Conf,
) -> Pass:
    lane_limit = min(most or settings.lanes_per_pass, settings.lanes_per_pass)
    (locked,) = sql.fetch(
        "lock_lanes", _Locked, {"lanes": list(lanes), "keys": list(keys), "awake": awake, "most": lane_limit}
    )
    if not locked.lanes:
        if keys:
            sql.ask("close_openings", object, {"keys": list(keys)})
        return Pass()
    batch = min(most or settings.batch, settings.batch)
    heads = -(-batch // len(locked.lanes)) + 1
    keys_asked = sql.ask("look_keys", _KeyRow, {"keys": locked.keys, "now": now, "margin": settings.margin})
    lanes_asked = sql.ask("look_lanes", _HeadRow, {"lanes": locked.lanes, "heads": heads, "now": now})
    key_rows, head_rows = keys_asked.rows(), lanes_asked.rows()
    at = head_rows[0].now
    counted = {row.id: _key(row, at) for row in key_rows}
    names = {row.name: row.id for row in key_rows}
    made = allot(
        lanes_now := list(_lanes(head_rows, names, heads)),
        counted.values(),
        now=at,
        pace=Pace(horizon=settings.horizon, margin=settings.margin),
        batch=batch,
        reschedule_after=settings.reschedule_after,
    )
    slots = _slots(made, lanes_now)
    calls = _write(made, slots, lanes_now, now, settings)
    if opened := [key for key in keys if key not in made.openings]:
        sql.ask("close_openings", object, {"keys": opened})
    return Pass(made=made, calls=calls, full=_full(made, counted, slots))


def _key(row: _KeyRow, now: datetime) -> KeyNow:
    return KeyNow(
        id=row.id,
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
            is_outranked=lane.is_outranked,
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
    lane_ids = [*made.awake, *made.asleep, *made.parked]
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
