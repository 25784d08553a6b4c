"""Admit: give waiting calls their slots, as far as every limit of every key has room. The one way in."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from time import monotonic
from typing import Any, ClassVar
from uuid import UUID

from django.db import OperationalError

from dispatcher import event_log, groups, sql
from dispatcher.conf import CONCURRENT_DECISIONS, Conf, conf, is_eager, needs_worker, pass_bound
from dispatcher.event_log import waiting
from dispatcher.limits.allocate import Allocation, LockedKey, LockedLane, allocate
from dispatcher.limits.policy import UNLIMITED, AdmissionTuning
from dispatcher.limits.turns import Share
from dispatcher.limits.usage import HeadRow, KeyRow, locked_key, locked_lanes
from dispatcher.messages.message import Admitted
from dispatcher.models import CallQueue, Slot
from dispatcher.signals import call_dropped
from dispatcher.states import Delivery, State

_FIRST_HEADS = 32
"""How many calls a pass reads of a lane at first; more only if all of them may go, since it locks what it reads."""
_PULLED_LANES = 10
"""How many lanes of a queue a pass takes at the least for who fetches from it: the first of them may be limited."""


KEY_WAIT = timedelta(milliseconds=200)
"""How long a pass waits for a key that it was made for: longer than passes, sends and claims of a hot key hold it."""
_LOCK_NOT_AVAILABLE = "55P03"
"""The SQLSTATE of a wait that lock_timeout has ended."""


class _Stuck:
    """Keys whose lock wait timed out, and until when this process does not wait for them again."""

    until: ClassVar[dict[int, float]] = {}


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
        """Whether it changed anything: a call admitted, put off or dropped, or a lane parked or held."""
        allocation = self.allocation
        return bool(
            allocation.admitted
            or allocation.oversized
            or allocation.dropped
            or allocation.rescheduled
            or allocation.parked
            or allocation.held
        )


@dataclass(frozen=True, kw_only=True)
class Recheck:
    """Where the next pass should look."""

    lanes: list[int]
    """Lanes that have calls left, or got some while the pass decided."""
    keys: list[int]
    """Keys with room for lanes that are parked on them."""
    queues: list[str] = field(default_factory=list)
    """Queues with room for lanes that they have held."""


@dataclass(frozen=True, kw_only=True)
class ReleasedRoom:
    """Where a release has made room: keys with parked lanes, the queue of the lane, and whether any lane is awake."""

    keys: list[int]
    has_awake: bool
    queues: list[str]


@dataclass(frozen=True, kw_only=True)
class SpentKeys:
    """The keys that a call in flight spends, by id, but not its groups."""

    names: Mapping[int, str]
    chosen: frozenset[str]
    """The names of those that were chosen of groups."""

    def stopped(self, named: str | None) -> dict[int, str]:
        """Return the keys that a provider stops: the named one; else those that were chosen, or all if none was.

        The provider refuses the account or address that the call used; the others of the group go on.
        """
        wanted = {named} if named is not None else self.chosen
        return {key: name for key, name in self.names.items() if not wanted or name in wanted}


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
class _Dropped:
    id: UUID
    key: str


@dataclass(frozen=True, kw_only=True)
class _Decided:
    """What a pass has decided, its last statement on the way."""

    made: Pass
    admitted: sql.Asked[Admitted] | None = None
    dropped: Sequence[_Dropped] = ()


def admit(
    *,
    lanes: Collection[int] = (),
    keys: Collection[int] = (),
    queues: Collection[str] = (),
    awake: bool = False,
    most: int | None = None,
    avoid: Collection[int] = (),
    stuck: Collection[int] = (),
    wait_for: int | None = None,
    delivery: Delivery = Delivery.BROKER,
    worker: UUID | None = None,
    now: datetime | None = None,
) -> Pass:
    """Make one pass over these lanes, those parked on these keys, held by these queues, and, if `awake`, those awake.

    most: how many calls it admits, and how many lanes of a kind it takes, at the most; the settings' by default.
    avoid: keys that somebody has locked; lanes that are awake or held and spend one are not looked at.
    stuck: those of them whose lanes delay no others.
    wait_for: a key to wait for, up to KEY_WAIT, if somebody has locked it; lanes of other keys that are locked are left
    out.
    delivery: the pass admits calls of queues with this delivery; but for the broker's, its caller starts them at once.
    worker: who fetches them; without one, none that spend a key with a limit per worker.
    """
    wanted = {"lanes": list(lanes), "keys": list(keys), "queues": list(queues), "awake": awake, "avoid": list(avoid)}
    decide = partial(_decide, most=most, delivery=delivery, worker=worker, now=now, settings=conf(), stuck=stuck)
    # Within the caller's transaction the bound on the wait would outlast the pass.
    if wait_for is not None and not sql.connection().in_atomic_block:
        try:
            with sql.own_transaction():
                sql.ask("limit_wait", object, {"wait": f"{KEY_WAIT // timedelta(milliseconds=1)}ms"})
                decided = decide({**wanted, "wait_for": wait_for})
            return _settled(decided)
        except OperationalError as fault:
            if getattr(fault.__cause__, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
                raise
            _Stuck.until[wait_for] = monotonic() + conf().tick.total_seconds()
    with sql.own_transaction():
        decided = decide({**wanted, "wait_for": None})
    return _settled(decided)


def admit_direct(
    *,
    worker: UUID,
    queues: Collection[str],
    keys: Collection[int],
    avoid: Collection[int],
    stuck: Collection[int],
    most: int,
    shares: Mapping[str, Share],
) -> Pass:
    """Make one pass over the lanes that these direct queues have held, and those parked on these keys.

    In the caller's transaction, which also starts what it admits. stuck: keys that another transaction has locked for
    so long that their lanes delay no others. shares: the turns of the queues by their weights.
    """
    wanted = {"lanes": [], "keys": list(keys), "queues": list(queues), "awake": False, "avoid": list(avoid)}
    settings = conf()
    decided = _decide(
        {**wanted, "wait_for": None},
        most=most,
        delivery=Delivery.DIRECT,
        worker=worker,
        now=None,
        settings=settings,
        stuck=stuck,
        shares=shares,
    )
    return _settled(decided)


def stuck_keys() -> set[int]:
    """Return the keys that this process has waited for in vain lately: a transaction keeps them locked."""
    now = monotonic()
    known = list(_Stuck.until.items())
    for key, until in known:
        if until <= now:
            _Stuck.until.pop(key, None)
    return {key for key, until in known if until > now}


def recheck(done: Pass, *, now: datetime | None = None) -> Recheck:
    """Return where room or calls appeared while a pass decided; call it after the commit of that pass."""
    allocation = done.allocation
    if not (allocation.asleep or done.full or allocation.keys_with_room or done.filled):
        return Recheck(lanes=allocation.awake, keys=[])
    again = look_again(
        asleep=allocation.asleep, full=done.full, keys_with_room=allocation.keys_with_room, filled=done.filled, now=now
    )
    return Recheck(lanes=[*allocation.awake, *again.lanes], keys=again.keys, queues=again.queues)


def look_again(
    *,
    asleep: Sequence[int],
    full: Mapping[int, int],
    keys_with_room: Sequence[int] = (),
    filled: Collection[str] = (),
    now: datetime | None = None,
) -> Recheck:
    """Return which of these lanes have calls, and which of these keys and queues room, with a new snapshot."""
    with sql.together():
        asked = ask_again(asleep=asleep, full=full, keys_with_room=keys_with_room, filled=filled, now=now)
    return asked.row()


def ask_again(
    *,
    asleep: Sequence[int],
    full: Mapping[int, int],
    keys_with_room: Sequence[int] = (),
    filled: Collection[str] = (),
    now: datetime | None = None,
) -> sql.Asked[Recheck]:
    """Ask what `look_again` returns: its row is the answer."""
    params = {
        "asleep": list(asleep),
        "full": list(full),
        "held": list(full.values()),
        "keys_with_room": list(keys_with_room),
        "filled": list(filled),
        "ahead": pass_bound(conf()),
        "now": now,
    }
    return sql.ask("recheck", Recheck, params)


def released_room(
    keys: Collection[int] = (), lane: int | None = None, *, call: UUID | None = None, now: datetime | None = None
) -> sql.Asked[ReleasedRoom]:
    """Ask what a release of these keys, in this lane, or of this call may have made room for; its row is the answer."""
    params = {"keys": list(keys), "lane": lane, "call": call, "ahead": pass_bound(conf()), "now": now}
    return sql.ask("find_released_room", ReleasedRoom, params)


def keys_of(call_id: UUID) -> SpentKeys:
    """Return the keys that a call in flight holds slots of."""
    held = Slot.objects.using(conf().database).filter(call=call_id, key__isnull=False, key__is_group=False)
    rows = list(held.values_list("key_id", "key__name", "call__chosen_keys"))
    chosen = {name for _, _, keys in rows for name in (keys or {}).values()}
    return SpentKeys(names={key: name for key, name, _ in rows}, chosen=frozenset(chosen))


def _decide(
    wanted: Mapping[str, Any],
    *,
    most: int | None,
    delivery: Delivery,
    worker: UUID | None,
    now: datetime | None,
    settings: Conf,
    stuck: Collection[int] = (),
    shares: Mapping[str, Share] | None = None,
) -> _Decided:
    lane_limit = min(most or settings.lanes_per_pass, settings.lanes_per_pass)
    batch = min(most or settings.batch, settings.batch)
    is_pull = delivery is not Delivery.BROKER
    if is_pull:
        lane_limit = max(lane_limit, _PULLED_LANES)
    gate = {
        "deliveries": _deliveries(delivery),
        "needs_worker": delivery is Delivery.BROKER and needs_worker(),
        "ahead": pass_bound(settings),
        "now": now,
    }
    bounds = {"most": lane_limit, "slack": CONCURRENT_DECISIONS * batch}
    sql.read_in_order()
    (locked,) = sql.fetch("lock_lanes", _Locked, {**wanted, **gate, **bounds})
    if not locked.lanes:
        if wanted["keys"]:
            sql.ask("clear_opening_times", object, {"keys": wanted["keys"]})
        return _Decided(made=Pass(left=_left(locked), busy=tuple(locked.left_keys)))
    heads = min(_FIRST_HEADS, -(-batch // len(locked.lanes)) + 1)
    asked_for = {"worker": worker, "now": now, "margin": settings.margin}
    keys_asked = sql.ask("count_key_usage", KeyRow, {"keys": locked.keys, **asked_for})
    queues_asked = sql.ask("count_queue_usage", _QueueRow, {"lanes": locked.lanes, **gate})
    looked_at = {"lanes": locked.lanes, "stuck": _with_groups(stuck_keys().union(stuck)), "now": now}
    lanes_asked = sql.ask("read_lane_heads", HeadRow, {**looked_at, "heads": heads})
    key_rows, head_rows = keys_asked.rows(), lanes_asked.rows()
    at = head_rows[0].now
    members = _members(locked)
    counted = {
        row.id: locked_key(replace(row, mine=_mine(row, delivery, worker)), at, _members_of(row, members))
        for row in key_rows
    }
    names = {row.name: row.id for row in key_rows}
    queue_rows = queues_asked.rows()
    # Who fetches a call starts it when the answer comes, and can't wait for a start that lies ahead.
    horizon = timedelta(0) if delivery is Delivery.HTTP else settings.horizon
    tuning = AdmissionTuning(horizon=horizon, margin=settings.margin, ramp=settings.ramp)
    rooms = {
        row.name: (batch if row.is_served else 0)
        if is_pull
        else _queue_room(row, is_tight=row.name in locked.tight, settings=settings)
        for row in queue_rows
    }
    decide = partial(
        allocate,
        keys=counted.values(),
        queues=rooms,
        now=at,
        tuning=tuning,
        batch=batch,
        reschedule_after=settings.reschedule_after,
        shares=shares,
    )
    allocation = decide(lanes_seen := list(locked_lanes(head_rows, names, heads)))
    if allocation.unread and heads < (most_heads := -(-settings.batch // len(locked.lanes)) + 1):
        head_rows = sql.fetch("read_lane_heads", HeadRow, {**looked_at, "heads": most_heads})
        allocation = decide(lanes_seen := list(locked_lanes(head_rows, names, most_heads)))
    if delivery is Delivery.DIRECT:
        _hold_awake(allocation, lanes_seen)
    slots = _slots(allocation, lanes_seen)
    key_names = {row.id: row.name for row in key_rows}
    dropped, admitted = _write(allocation, slots, lanes_seen, names=key_names, now=now, settings=settings)
    if opened := [key for key in wanted["keys"] if key not in allocation.openings]:
        sql.ask("clear_opening_times", object, {"keys": opened})
    if event_log.is_kept():
        event_log.note([*waiting.of_pass(allocation, lanes_seen, waiting.stand(counted.values(), slots, at, tuning))])
    served = {row.name for row in queue_rows if row.is_served and not is_pull}
    filled = served.intersection((*allocation.held.values(), *locked.held_queues))
    is_waited_for = any(lane.yields_to_higher_priority for lane in lanes_seen)
    made = Pass(
        allocation=allocation,
        spent=_spent(slots),
        full=_full(allocation, counted, slots),
        filled=filled,
        left={**_left(locked, everything=is_waited_for), **allocation.left},
        direct=frozenset() if delivery is Delivery.DIRECT else _held_direct(allocation, queue_rows),
        busy=(*locked.left_keys, *_busy(allocation, lanes_seen, members)),
    )
    return _Decided(made=made, admitted=admitted, dropped=dropped)


def _settled(decided: _Decided) -> Pass:
    """Return what a pass did. After its commit, if that is its own: so the commit travels with its last statement."""
    calls = decided.admitted.rows() if decided.admitted is not None else ()
    if decided.dropped:
        sql.after_commit(partial(_report_dropped, decided.dropped))
    return replace(decided.made, calls=calls)


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


def _busy(allocation: Allocation, lanes: Iterable[LockedLane], members: Mapping[int, list[int]]) -> set[int]:
    """Return the locked members that kept calls waiting, and the groups: their lanes are left out for a while."""
    found = set(allocation.left.values())
    spent = {key for lane in lanes if lane.id in allocation.left for key in lane.key_ids}
    return found | {group for group in spent.intersection(members) if found.intersection(members[group])}


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


def _queue_room(row: _QueueRow, *, is_tight: bool, settings: Conf) -> int:
    """Return how many calls more a queue takes; a pass that is not alone with it takes a share."""
    if not row.is_served:
        return 0
    room = max(0, pass_bound(settings) - row.unclaimed)
    return room if is_tight else room // CONCURRENT_DECISIONS


def _slots(allocation: Allocation, lanes: Iterable[LockedLane]) -> list[tuple[UUID, int | None, int]]:
    """Return the slots of the admitted calls as (call, key, cost); a call without keys has one without a key.

    The key that was chosen of a group is spent beside the group.
    """
    admitted = set(allocation.admitted)
    calls = [(lane, head) for lane in lanes for head in lane.heads if head.call_id in admitted]
    named = [
        (head.call_id, key_id, head.costs.get(key_id, 1) if key_id else 1)
        for lane, head in calls
        for key_id in lane.key_ids or (None,)
    ]
    chosen = [
        (head.call_id, member, head.costs.get(group, 1))
        for _, head in calls
        for group, member in allocation.chosen.get(head.call_id, {}).items()
    ]
    return named + chosen


def _write(
    allocation: Allocation,
    slots: Sequence[tuple[UUID, int | None, int]],
    lanes: Sequence[LockedLane],
    *,
    names: Mapping[int, str],
    now: datetime | None,
    settings: Conf,
) -> tuple[list[_Dropped], sql.Asked[Admitted]]:
    dropped: list[_Dropped] = []
    if allocation.dropped:
        calls, keys = zip(*allocation.dropped, strict=True)
        params = {"calls": list(calls), "keys": list(keys), "waiting": State.AVAILABLE.value, "now": now}
        dropped = sql.fetch("drop_calls", _Dropped, params)
    if allocation.oversized:
        calls, keys, costs = zip(*allocation.oversized, strict=True)
        params = {"calls": list(calls), "keys": list(keys), "costs": list(costs), "waiting": State.AVAILABLE.value}
        sql.change("mark_oversized", params)
    if allocation.rescheduled:
        calls, times = zip(*allocation.rescheduled, strict=True)
        sql.change("reschedule_calls", {"calls": list(calls), "at": list(times), "waiting": State.AVAILABLE.value})
    turn_of = {call: turn for turn, call in enumerate(allocation.admitted)}
    turns = {lane.id: max((turn_of.get(head.call_id, -1) for head in lane.heads), default=-1) for lane in lanes}
    left = [lane for lane in allocation.left if lane not in allocation.held]
    lane_ids = [*allocation.awake, *left, *allocation.asleep, *allocation.parked, *allocation.held]
    awake = {*allocation.awake, *left}
    chosen_keys = {
        call: json.dumps({names[group]: names[member] for group, member in chosen.items()})
        for call, chosen in allocation.chosen.items()
    }
    key_ids = sorted({*allocation.openings, *(key for _, key, _ in slots if key is not None)})
    return dropped, sql.ask(
        "admit_calls",
        Admitted,
        {
            "now": now,
            "waiting": State.AVAILABLE.value,
            "calls": allocation.admitted,
            "chosen_keys": [chosen_keys.get(call) for call in allocation.admitted],
            "lease": settings.dispatch_lease,
            "slot_call": [call for call, _, _ in slots],
            "slot_key": [key for _, key, _ in slots],
            "slot_cost": [cost for _, _, cost in slots],
            "lane": lane_ids,
            "lane_awake": [lane in awake for lane in lane_ids],
            "lane_parked": [allocation.parked.get(lane) for lane in lane_ids],
            "lane_held": [lane in allocation.held for lane in lane_ids],
            "lane_turn": [turn if (turn := turns[lane]) >= 0 else None for lane in lane_ids],
            "key": key_ids,
            "key_stopped": [key in allocation.openings for key in key_ids],
            "key_opens": [allocation.openings.get(key) for key in key_ids],
        },
    )


def _report_dropped(dropped: Sequence[_Dropped]) -> None:
    for call in dropped:
        call_dropped.send_robust(sender=CallQueue, call_id=call.id, key=call.key)


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
