"""Allocate the room of the keys to the lanes of one pass.

Pure: what was counted under the locks comes in, the decisions come out. Lanes are served in the order given,
priority by priority, one call each in turn, so that lanes that share a key take turns; or, where a worker's queues have
weights, one call of the queue that is due.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import groupby
from uuid import UUID

from dispatcher.limits.policy import (
    AdmissionTuning,
    Policy,
    Use,
    next_opening,
    ramp_opening,
    ramp_room,
    room,
    throttle_room,
    worker_room,
)
from dispatcher.limits.turns import Share
from dispatcher.states import OnLimit


@dataclass(frozen=True, kw_only=True)
class LockedKey:
    """A key under its lock: the policy in force, and what is spent of it."""

    id: int
    policy: Policy
    name: str = ""
    use: Use = field(default_factory=Use)
    is_paused: bool = False
    blocked_until: datetime | None = None
    chosen_at: datetime | None = None
    """When it was last spent."""
    members: Sequence[int] | None = None
    """Of a group, its keys: a call spends the group and one of them."""


@dataclass(frozen=True, kw_only=True)
class Head:
    """A call at the head of its lane, with its cost of each key that is not 1."""

    call_id: UUID
    costs: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class LockedLane:
    """A lane under its lock, its first calls in order of sending, and whether more wait behind them."""

    id: int
    queue: str = ""
    priority: int = 0
    on_limit: OnLimit = OnLimit.WAIT
    key_ids: Sequence[int] = ()
    heads: Sequence[Head] = ()
    has_more: bool = False
    parked_on: int | None = None
    """The key that it was parked on until now."""
    yields_to_higher_priority: bool = False
    """A lane of higher priority in the same queue is awake and not in this pass: it goes first."""
    yields_to_parked_lane: bool = False
    """One is parked on a key of this lane and not in this pass: it goes first if the key has room after all."""


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """What one pass decided."""

    admitted: list[UUID] = field(default_factory=list)
    chosen: dict[UUID, dict[int, int]] = field(default_factory=dict)
    """Admitted call: the member that it spends of each of its groups."""
    dropped: list[tuple[UUID, int]] = field(default_factory=list)
    """(call, the key that stopped it)"""
    rescheduled: list[tuple[UUID, datetime]] = field(default_factory=list)
    """(call, when its limit is expected to allow it)"""
    oversized: list[tuple[UUID, int, int]] = field(default_factory=list)
    """(call that waits alone from now on, the key that never allows its cost, that cost)"""
    stopped: list[tuple[UUID, int]] = field(default_factory=list)
    """(call that stays, the key that stopped it)"""
    asleep: list[int] = field(default_factory=list)
    awake: list[int] = field(default_factory=list)
    parked: dict[int, int] = field(default_factory=dict)
    """lane: the key that stopped it"""
    moved: list[int] = field(default_factory=list)
    """Those of the parked lanes that were not parked on that key before."""
    held: dict[int, str] = field(default_factory=dict)
    """lane: the queue that holds it, since it has no room, or the worker has reached its limit of a key"""
    reached: list[int] = field(default_factory=list)
    """Keys of which the worker holds as much as one worker may, with lanes that others may serve."""
    left: dict[int, int] = field(default_factory=dict)
    """Lane that only a member could let go on which another transaction has locked: that member"""
    openings: dict[int, datetime | None] = field(default_factory=dict)
    """Key that stopped a lane: when time will open it; None if only a release or a person can."""
    unread: list[int] = field(default_factory=list)
    """Lanes that could go on with calls that were not read."""
    keys_with_room: list[int] = field(default_factory=list)
    """Keys with room left, for lanes that are parked on them."""

    @property
    def has_moved(self) -> bool:
        """Whether another pass may find more: lanes that wait where they did before change nothing for the others."""
        return bool(self.admitted or self.oversized or self.dropped or self.rescheduled or self.moved)


def allocate(
    lanes: Iterable[LockedLane],
    keys: Iterable[LockedKey],
    *,
    queues: Mapping[str, int] | None = None,
    now: datetime,
    tuning: AdmissionTuning,
    batch: int,
    reschedule_after: timedelta,
    shares: Mapping[str, Share] | None = None,
) -> Allocation:
    """Admit up to `batch` calls, and decide the next state of every lane.

    queues: how many more calls of each queue may be dispatched; a queue that is not named is unbounded.
    shares: the turns of all queues by their weights; without, all lanes take turns.
    """
    budgets = _budgets(keys, now, tuning)
    room = dict(queues or {})
    allocation = Allocation()
    due = {queue: share.due for queue, share in (shares or {}).items()}
    for _, peers in groupby(lanes, key=lambda lane: lane.priority):
        turns = [_LaneCursor(lane, room) for lane in peers]
        while turns and shares:
            turn = min(turns, key=lambda turn: due[turn.lane.queue])
            turns.remove(turn)
            before = len(allocation.admitted)
            if turn.step(allocation, budgets, batch, reschedule_after):
                turns.append(turn)
            due[turn.lane.queue] += shares[turn.lane.queue].stride * (len(allocation.admitted) - before)
        while turns:
            turns = [turn for turn in turns if turn.step(allocation, budgets, batch, reschedule_after)]
    allocation.keys_with_room.extend(budget.key.id for budget in budgets.values() if budget.has_room(1))
    return allocation


class _Budget:
    """What is left of one key during the pass."""

    def __init__(self, key: LockedKey, now: datetime, tuning: AdmissionTuning) -> None:
        self.key, self.now, self.tuning = key, now, tuning
        self.taken = self.put_off = 0
        is_blocked = key.blocked_until is not None and key.blocked_until > now
        self.is_closed = key.is_paused or is_blocked
        self.free = min(room(key.policy, key.use, now, tuning), ramp_room(key.blocked_until, key.use, now, tuning))
        self.paced = throttle_room(key.policy, key.use, now, tuning)
        self.own = worker_room(key.policy, key.use)

    def fits(self, cost: int) -> bool:
        return self.key.policy.fits(cost)

    def has_room(self, cost: int) -> bool:
        return not self.is_closed and cost <= self.free and self.paced >= 1

    def has_worker_room(self, cost: int) -> bool:
        return cost <= self.own

    def take(self, cost: int) -> int | None:
        """Spend this; return the member that was chosen of a group."""
        self.taken += cost
        self.own -= cost
        self.free -= cost
        self.paced -= cost
        return None

    def awaited(self, cost: int) -> int | None:  # noqa: ARG002 -- of a group it depends on the cost
        """Return a key that another transaction has locked, and that may have the room."""
        return None

    def opens_at(self, cost: int, *, behind: int = 0) -> datetime | None:
        """When time opens the key for this cost, and what goes before; None if it takes a release or a person."""
        if self.key.is_paused:
            return None
        key, now, tuning = self.key, self.now, self.tuning
        use = key.use.reserve(self.taken)
        use = replace(use, unstarted=use.unstarted + behind)
        ramp = ramp_opening(key.blocked_until, use, cost, now, tuning)
        times = (key.blocked_until, ramp, next_opening(key.policy, use, cost, now, tuning))
        latest = max((at for at in times if at is not None), default=self.now)
        return latest if latest > self.now else None


class _Group(_Budget):
    """What is left of a group: its own limits, if it has any, and one of its members."""

    def __init__(
        self, key: LockedKey, now: datetime, tuning: AdmissionTuning, members: Mapping[int, _Budget | None]
    ) -> None:
        super().__init__(key, now, tuning)
        self.members = [member for member in members.values() if member is not None]
        self.locked = [key_id for key_id, member in members.items() if member is None]
        """Those that another transaction has locked."""
        self.is_shut = self.is_closed

    def fits(self, cost: int) -> bool:
        # Without members it waits for one: which costs that will allow is unknown.
        is_unknown = bool(self.locked) or not self.members
        return super().fits(cost) and (is_unknown or any(member.fits(cost) for member in self.members))

    def has_room(self, cost: int) -> bool:
        return super().has_room(cost) and self._choose(cost) is not None

    def take(self, cost: int) -> int | None:
        super().take(cost)
        chosen = self._choose(cost)
        if chosen is None:
            return None
        chosen.take(cost)
        return chosen.key.id

    def awaited(self, cost: int) -> int | None:
        return next(iter(self.locked), None) if self._allows(cost) else None

    def opens_at(self, cost: int, *, behind: int = 0) -> datetime | None:
        own = super().opens_at(cost, behind=behind)
        if own is not None or not self._allows(cost):
            return own
        share = -(-behind // max(1, len(self.members)))
        times = (member.opens_at(cost, behind=share) for member in self.members if member.fits(cost))
        return min((at for at in times if at is not None), default=None)

    def _allows(self, cost: int) -> bool:
        """Whether the group's own limits have room."""
        return not self.is_shut and cost <= self.free and self.paced >= 1

    def has_worker_room(self, cost: int) -> bool:
        chosen = self._choose(cost)
        return super().has_worker_room(cost) and chosen is not None and chosen.has_worker_room(cost)

    def _choose(self, cost: int) -> _Budget | None:
        """Return the member with the most room, of this worker if any; of several the one spent the longest ago."""
        fitting = [member for member in self.members if member.fits(cost) and member.has_room(cost)]
        mine = [member for member in fitting if member.has_worker_room(cost)]
        return min(mine or fitting, key=_by_room, default=None)


def _by_room(budget: _Budget) -> tuple[int, float, int]:
    at = budget.key.chosen_at
    return -min(budget.free, budget.paced), at.timestamp() if at is not None else 0.0, budget.key.id


def _budgets(keys: Iterable[LockedKey], now: datetime, tuning: AdmissionTuning) -> dict[int, _Budget]:
    """Return the budgets of locked keys; those of groups share the budgets of their members."""
    keys = list(keys)
    plain = {key.id: _Budget(key, now, tuning) for key in keys if key.members is None}
    groups = {
        key.id: _Group(key, now, tuning, {member: plain.get(member) for member in key.members})
        for key in keys
        if key.members is not None
    }
    return {**plain, **groups}


def _by_certainty(stop: tuple[_Budget, int]) -> int:
    """Order what stops a call: what never allows it, then a limit, then a key that is locked."""
    budget, cost = stop
    if not budget.fits(cost):
        return 0
    return 1 if budget.awaited(cost) is None else 2


class _LaneCursor:
    """Steps through the calls of one lane until none is left or a limit stops it."""

    def __init__(self, lane: LockedLane, queues: dict[str, int]) -> None:
        self.lane, self.queues = lane, queues
        self.heads = iter(lane.heads)

    def step(
        self, allocation: Allocation, budgets: dict[int, _Budget], batch: int, reschedule_after: timedelta
    ) -> bool:
        """Decide the lane's next call; return whether the lane has a turn in the next round."""
        if self.lane.heads and not self._has_queue_room:
            return self._ends_held(allocation)
        if self.lane.yields_to_higher_priority or len(allocation.admitted) >= batch:
            (allocation.awake if self.lane.heads else allocation.asleep).append(self.lane.id)
            return False
        head = next(self.heads, None)
        if head is None:
            (allocation.awake if self.lane.has_more else allocation.asleep).append(self.lane.id)
            allocation.unread.extend([self.lane.id] if self.lane.has_more else [])
            return False
        return self._decide(head, allocation, budgets, reschedule_after)

    def _decide(
        self, head: Head, allocation: Allocation, budgets: dict[int, _Budget], reschedule_after: timedelta
    ) -> bool:
        spent = [(budgets[key_id], head.costs.get(key_id, 1)) for key_id in self.lane.key_ids]
        stops = [(budget, cost) for budget, cost in spent if not (budget.has_room(cost) and budget.fits(cost))]
        stop = min(stops, key=_by_certainty, default=None)
        if stop is None and (reached := [budget for budget, cost in spent if not budget.has_worker_room(cost)]):
            return self._leave_to_others(head, reached[0], allocation)
        if stop is None and self.lane.yields_to_parked_lane:
            allocation.awake.append(self.lane.id)
            return False
        if stop is None:
            chosen = {budget.key.id: member for budget, cost in spent if (member := budget.take(cost)) is not None}
            if chosen:
                allocation.chosen[head.call_id] = chosen
            if self.lane.queue in self.queues:
                self.queues[self.lane.queue] -= 1
            allocation.admitted.append(head.call_id)
            return True
        return self._stopped(head, *stop, allocation, reschedule_after)

    @property
    def _has_queue_room(self) -> bool:
        return self.queues.get(self.lane.queue, 1) > 0

    def _ends_held(self, allocation: Allocation) -> bool:
        """Leave the lane to its queue; one that has had its last call by now sleeps."""
        if next(self.heads, None) is None and not self.lane.has_more:
            allocation.asleep.append(self.lane.id)
        else:
            allocation.held[self.lane.id] = self.lane.queue
        return False

    def _leave_to_others(self, head: Head, budget: _Budget, allocation: Allocation) -> bool:
        """Leave the lane to workers that have room of the key, whatever the call does at a limit.

        Where the broker delivers, the worker is not known and the limit can't be kept: the lane parks.
        """
        allocation.stopped.append((head.call_id, budget.key.id))
        if budget.key.use.mine is None:
            self._park(budget, allocation)
            allocation.openings.setdefault(budget.key.id, None)
        else:
            allocation.held[self.lane.id] = self.lane.queue
            allocation.reached.append(budget.key.id)
        # Calls behind a more expensive one do not take the room that it waits for.
        budget.own = 0
        return False

    def _park(self, budget: _Budget, allocation: Allocation) -> None:
        allocation.parked[self.lane.id] = budget.key.id
        if self.lane.parked_on != budget.key.id:
            allocation.moved.append(self.lane.id)

    def _stopped(
        self, head: Head, budget: _Budget, cost: int, allocation: Allocation, reschedule_after: timedelta
    ) -> bool:
        if budget.fits(cost) and (locked := budget.awaited(cost)) is not None:
            allocation.left[self.lane.id] = locked
            # Calls behind it do not take the room that it waits for.
            budget.is_closed = True
            return False
        if self.lane.on_limit != OnLimit.DROP:
            allocation.stopped.append((head.call_id, budget.key.id))
        match self.lane.on_limit:
            case OnLimit.DROP:
                allocation.dropped.append((head.call_id, budget.key.id))
                return True
            case _ if not budget.fits(cost):
                # No release and no time would let it start: it waits alone, and those behind it go on.
                allocation.oversized.append((head.call_id, budget.key.id, cost))
                return True
            case OnLimit.RESCHEDULE:
                at = budget.opens_at(cost, behind=budget.put_off) or budget.now + reschedule_after
                # Only those that are put off themselves come after it: it has reserved nothing, and gave up its place.
                budget.put_off += cost
                allocation.rescheduled.append((head.call_id, at))
                return True
            case OnLimit.WAIT:
                self._park(budget, allocation)
                allocation.openings.setdefault(budget.key.id, budget.opens_at(cost))
                # Calls behind a more expensive one do not take the room that it waits for.
                budget.is_closed = True
                return False
