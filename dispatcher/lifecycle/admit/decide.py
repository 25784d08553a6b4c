"""Decide: lock lanes and keys, count what is spent, and share the room out among the waiting calls."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import Any
from uuid import UUID

from dispatcher import event_log, groups, sql
from dispatcher.conf import CONCURRENT_DECISIONS, Conf, conf, is_eager, needs_worker, pass_bound
from dispatcher.event_log import waiting
from dispatcher.lifecycle.admit import record
from dispatcher.limits.allocate import Allocation, LockedKey, LockedLane, allocate
from dispatcher.limits.policy import UNLIMITED, AdmissionTuning
from dispatcher.limits.turns import Share
from dispatcher.limits.usage import HeadRow, KeyRow, locked_key, locked_lanes
from dispatcher.messages.message import Admitted
from dispatcher.states import Delivery

_FIRST_HEADS = 32
"""How many calls a pass reads of a lane at first; more only if all of them may go, since it locks what it reads."""
_PULLED_LANES = 10
"""How many lanes of a queue a pass takes at the least for who fetches from it: the first of them may be limited."""


@dataclass(frozen=True, kw_only=True)
class Pass:
    """What one pass decided and did."""

    calls: Sequence[Admitted] = ()
    allocation: Allocation = field(default_factory=Allocation)
    full: Mapping[int, int] = field(default_factory=dict)
    """Keys that a lack of concurrency closed, with the cost that they held when it did."""
    filled: Collection[str] = ()
    """Queues that hold lanes: enough of their calls are on the way to workers, or the pass took a part of the lanes."""
    left: Mapping[int, int] = field(default_factory=dict)
    """Lanes that the pass should have served and left out, each with a key of its that somebody else had locked."""
    busy: Collection[int] = ()
    """All keys that kept it from a lane."""
    spent: Mapping[UUID, Sequence[int]] = field(default_factory=dict)
    """The keys of the calls that it admitted."""
    direct: Collection[str] = ()
    """Direct queues that hold lanes since this pass, which does not serve them: their workers do."""

    @property
    def has_moved(self) -> bool:
        """Whether it changed anything: a call admitted, put off or dropped, or a lane parked elsewhere or held."""
        return self.allocation.has_moved or bool(self.allocation.held)


@dataclass(frozen=True, kw_only=True)
class _Locked:
    lanes: list[int]
    keys: list[int]
    groups: list[int]
    members: list[int]
    """Of each of `groups` one, also if somebody else has locked it."""
    left_lanes: list[int]
    left_keys: list[int]
    is_left_wanted: list[bool]
    tight: list[str]
    held_queues: list[str]


@dataclass(frozen=True, kw_only=True)
class _QueueRow:
    name: str
    unclaimed: int
    delivery: str
    is_served: bool


@dataclass(frozen=True, kw_only=True)
class Request:
    """Which lanes a pass serves, as `admit` takes them, and for whom."""

    lanes: Collection[int] = ()
    keys: Collection[int] = ()
    queues: Collection[str] = ()
    awake: bool = False
    avoid: Collection[int] = ()
    most: int | None = None
    delivery: Delivery
    worker: UUID | None
    shares: Mapping[str, Share] | None = None
    now: datetime | None = None
    settings: Conf = field(default_factory=conf)

    @property
    def is_pull(self) -> bool:
        """Whether workers take the calls from the database."""
        return self.delivery is not Delivery.BROKER

    @property
    def batch(self) -> int:
        """How many calls it admits at the most."""
        return min(self.most or self.settings.batch, self.settings.batch)

    @cached_property
    def gate(self) -> dict[str, Any]:
        """The parameters that decide which queues it serves."""
        return {
            "deliveries": _deliveries(self.delivery),
            "needs_worker": self.delivery is Delivery.BROKER and needs_worker(),
            "ahead": pass_bound(self.settings),
            "now": self.now,
        }


@dataclass(frozen=True, kw_only=True)
class Decided:
    """What a pass has decided, its last statement on the way."""

    made: Pass
    admitted: sql.Asked[Admitted] | None = None
    dropped: Sequence[record.Dropped] = ()


@dataclass(frozen=True, kw_only=True)
class _Counted:
    now: datetime
    keys: Mapping[int, LockedKey]
    queues: Sequence[_QueueRow]
    heads: Sequence[HeadRow]
    heads_params: Mapping[str, Any]
    """How `heads` were read."""

    @property
    def key_ids(self) -> dict[str, int]:
        return {key.name: key.id for key in self.keys.values()}


def decide(request: Request, *, stuck: Collection[int], wait_for: int | None = None) -> Decided:
    """Decide a pass, and record it, in the caller's transaction.

    stuck: keys that another transaction has locked for so long that their lanes delay no others.
    wait_for: a key whose lock it waits for.
    """
    sql.read_in_order()
    locked = _lock(request, wait_for)
    if not locked.lanes:
        _clear_opening_times(request.keys)
        return Decided(made=Pass(left=_left(locked), busy=tuple(locked.left_keys)))
    counted = _count(request, locked, stuck)
    settings = request.settings
    # Who fetches a call starts it when the answer comes, and can't wait for a start that lies ahead.
    horizon = timedelta(0) if request.delivery is Delivery.HTTP else settings.horizon
    tuning = AdmissionTuning(horizon=horizon, margin=settings.margin, ramp=settings.ramp)
    allocation, lanes = _allocate(request, locked, counted, tuning)
    if request.delivery is Delivery.DIRECT:
        _hold_awake(allocation, lanes)
    slots = record.slots_of(allocation, lanes)
    names = {key.id: key.name for key in counted.keys.values()}
    dropped, admitted = record.write(
        allocation, slots, lanes, names=names, now=request.now, lease=settings.dispatch_lease
    )
    _clear_opening_times([key for key in request.keys if key not in allocation.openings])
    if event_log.is_kept():
        blocking = waiting.stand(counted.keys.values(), slots, counted.now, tuning)
        event_log.note([*waiting.of_pass(allocation, lanes, blocking)])
    served = {row.name for row in counted.queues if row.is_served and not request.is_pull}
    is_waited_for = any(lane.yields_to_higher_priority for lane in lanes)
    made = Pass(
        allocation=allocation,
        spent=_spent(slots),
        full=_full(allocation, counted.keys, slots),
        filled=served.intersection((*allocation.held.values(), *locked.held_queues)),
        left={**_left(locked, everything=is_waited_for), **allocation.left},
        direct=frozenset() if request.delivery is Delivery.DIRECT else _held_direct(allocation, counted.queues),
        busy=(*locked.left_keys, *_busy(allocation, lanes, counted.keys)),
    )
    return Decided(made=made, admitted=admitted, dropped=dropped)


def _lock(request: Request, wait_for: int | None) -> _Locked:
    """Lock the lanes to serve, and the keys that they spend."""
    lanes_per_pass = request.settings.lanes_per_pass
    most = min(request.most or lanes_per_pass, lanes_per_pass)
    params = {
        "lanes": list(request.lanes),
        "keys": list(request.keys),
        "queues": list(request.queues),
        "awake": request.awake,
        "avoid": list(request.avoid),
        "wait_for": wait_for,
        "most": max(most, _PULLED_LANES) if request.is_pull else most,
        "slack": CONCURRENT_DECISIONS * request.batch,
    }
    (locked,) = sql.fetch("lock_lanes", _Locked, {**params, **request.gate})
    return locked


def _clear_opening_times(keys: Collection[int]) -> None:
    if keys:
        sql.ask("clear_opening_times", object, {"keys": list(keys)})


def _count(request: Request, locked: _Locked, stuck: Collection[int]) -> _Counted:
    """Count what is spent of the locked keys and of the lanes' queues, and read the first calls of the lanes."""
    asked_for = {"worker": request.worker, "now": request.now, "margin": request.settings.margin}
    keys_asked = sql.ask("count_key_usage", KeyRow, {"keys": locked.keys, **asked_for})
    queues_asked = sql.ask("count_queue_usage", _QueueRow, {"lanes": locked.lanes, **request.gate})
    heads_params = {
        "lanes": locked.lanes,
        "stuck": _with_groups(stuck),
        "now": request.now,
        "heads": min(_FIRST_HEADS, _heads(request.batch, locked)),
    }
    heads_asked = sql.ask("read_lane_heads", HeadRow, heads_params)
    key_rows, heads = keys_asked.rows(), heads_asked.rows()
    now, members = heads[0].now, _members(locked)
    keys = {
        row.id: locked_key(
            replace(row, mine=_mine(row, request.delivery, request.worker)), now, _members_of(row, members)
        )
        for row in key_rows
    }
    return _Counted(now=now, keys=keys, queues=queues_asked.rows(), heads=heads, heads_params=heads_params)


def _heads(batch: int, locked: _Locked) -> int:
    """Return how many calls of each lane make a batch together, and one more, which shows that more are left."""
    return -(-batch // len(locked.lanes)) + 1


def _allocate(
    request: Request, locked: _Locked, counted: _Counted, tuning: AdmissionTuning
) -> tuple[Allocation, list[LockedLane]]:
    """Share the room out among the lanes, and return them; read more of their calls if all that were read may go."""
    rooms = {row.name: _queue_room(row, request, is_tight=row.name in locked.tight) for row in counted.queues}
    share = partial(
        allocate,
        keys=counted.keys.values(),
        queues=rooms,
        now=counted.now,
        tuning=tuning,
        batch=request.batch,
        reschedule_after=request.settings.reschedule_after,
        shares=request.shares,
    )
    heads = counted.heads_params["heads"]
    lanes = list(locked_lanes(counted.heads, counted.key_ids, heads))
    allocation = share(lanes)
    if allocation.unread and heads < (more := _heads(request.settings.batch, locked)):
        rows = sql.fetch("read_lane_heads", HeadRow, {**counted.heads_params, "heads": more})
        lanes = list(locked_lanes(rows, counted.key_ids, more))
        allocation = share(lanes)
    return allocation, lanes


def _spent(slots: Iterable[tuple[UUID, int | None, int]]) -> dict[UUID, list[int]]:
    """Return the keys that each admitted call spends."""
    spent: dict[UUID, list[int]] = {}
    for call, key, _ in slots:
        spent.setdefault(call, []).extend([key] if key else [])
    return spent


def _members(locked: _Locked) -> dict[int, list[int]]:
    """Return the members of each group."""
    members: dict[int, list[int]] = {}
    for group, member in zip(locked.groups, locked.members, strict=True):
        members.setdefault(group, []).append(member)
    return members


def _members_of(row: KeyRow, members: Mapping[int, list[int]]) -> list[int] | None:
    """Return the members of a key that is a group; None for another."""
    return members.get(row.id, []) if groups.is_group(row.name) else None


def _with_groups(keys: Collection[int]) -> list[int]:
    """Return these keys, and the groups that they are members of."""
    return [*keys, *(sql.fetch("find_groups", int, {"keys": list(keys)}) if keys else ())]


def _busy(allocation: Allocation, lanes: Iterable[LockedLane], keys: Mapping[int, LockedKey]) -> set[int]:
    """Return the locked members that kept calls waiting, and the groups: their lanes are left out for a while."""
    found = set(allocation.left.values())
    spent = {key for lane in lanes if lane.id in allocation.left for key in lane.key_ids}
    return found | {key for key in spent if found.intersection(keys[key].members or ())}


def _mine(row: KeyRow, delivery: Delivery, worker: UUID | None) -> int | None:
    """Return what the worker holds of a key; None if the broker chooses the worker."""
    if is_eager():
        # Tasks run one after the other in the sender's process.
        return 0
    if delivery is Delivery.BROKER:
        return None
    return row.mine if worker is not None else UNLIMITED


def _deliveries(delivery: Delivery) -> list[str]:
    """Return the deliveries whose queues a pass serves; one for the broker runs direct queues where tasks are eager."""
    if delivery is Delivery.BROKER and is_eager():
        return [delivery.value, Delivery.DIRECT.value]
    return [delivery.value]


def _held_direct(allocation: Allocation, queues: Iterable[_QueueRow]) -> frozenset[str]:
    direct = {row.name for row in queues if row.delivery == Delivery.DIRECT}
    return frozenset(direct.intersection(allocation.held.values()))


def _hold_awake(allocation: Allocation, lanes: Iterable[LockedLane]) -> None:
    """Let the queue hold the lanes that have calls left: workers that take calls themselves look for them there."""
    queue_of = {lane.id: lane.queue for lane in lanes}
    allocation.held.update({lane: queue_of[lane] for lane in (*allocation.awake, *allocation.left)})
    allocation.awake.clear()


def _left(locked: _Locked, *, everything: bool = False) -> dict[int, int]:
    """Return the lanes that were left out and must be come back to; everything: those that are awake as well.

    Those stay awake for the next pass, but lower priorities of their queues wait for them.
    """
    left = zip(locked.left_lanes, locked.left_keys, locked.is_left_wanted, strict=True)
    return {lane: key for lane, key, is_wanted in left if is_wanted or everything}


def _queue_room(row: _QueueRow, request: Request, *, is_tight: bool) -> int:
    """Return how many calls more a queue takes; a pass that is not alone with it takes a share."""
    if not row.is_served:
        return 0
    if request.is_pull:
        return request.batch
    room = max(0, pass_bound(request.settings) - row.unclaimed)
    return room if is_tight else room // CONCURRENT_DECISIONS


def _full(
    allocation: Allocation, counted: Mapping[int, LockedKey], slots: Iterable[tuple[UUID, int | None, int]]
) -> dict[int, int]:
    """Keys with a concurrency limit that lanes wait for, and the cost that they hold after this pass."""
    parked_on = {
        key for parked in set(allocation.parked.values()) for key in (parked, *(counted[parked].members or ()))
    }
    held = {
        key: counted[key].use.held
        for key in parked_on.intersection(counted)
        if counted[key].policy.concurrency is not None
    }
    for _, key, cost in slots:
        if key in held:
            held[key] += cost
    return held
