"""The rule of `take` in plain Python, on a state in memory that no one else changes: nothing is locked by others.

Times and durations are whole microseconds. What the functions of the database do beside it must be equal to it, see
test_take; what no limit may allow is stated apart from it, in the checker.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, NamedTuple

BIG = 2**31 - 1
MILLISECOND = 1_000
FINE = 100
"""Starts that are spaced by less, in microseconds, need not be given ahead."""
SECOND = 1_000_000
TURN, FIRST_TURN, CLOCK = 100_000, 7_258_118_400_000_000, -1
READY, LIMITED = 0, -1
LOWEST = -(2**63)
HINTS_APART = 64
"""By how many positions the first call of a lane that is served alone moves on until the lane is written."""
"""Places of a lane; None is asleep, and any other the key that it is parked on."""


@dataclass(kw_only=True)
class Limits:
    """The limits of a key: its own, or those of its override."""

    concurrency: int | None = None
    per_worker: int | None = None
    rate_limit: int | None = None
    rate_period: int | None = None
    throttle_limit: int | None = None
    throttle_period: int | None = None

    @property
    def is_timed(self) -> bool:
        """Return whether a start counts after it."""
        return self.rate_limit is not None or self.throttle_limit is not None

    @property
    def most_a_year(self) -> int | None:
        """Return the most that the throttle lets start within a year: more never fits."""
        if self.throttle_limit is None or self.throttle_period is None:
            return None
        return 366 * 86_400 * SECOND * self.throttle_limit // self.throttle_period

    def spacing(self, cost: int) -> int:
        """Return how long after a start of this cost the next one may come."""
        assert self.throttle_limit is not None
        assert self.throttle_period is not None
        return -(-self.throttle_period * cost // self.throttle_limit)

    def paced(self, next_at: int | None, cost: int, now: int, lead: int) -> int | None:
        """Return the start that the throttle gives a call of this cost, ahead of now; None if it need not wait."""
        if self.throttle_limit is None or (self.spacing(cost) < FINE and (next_at is None or next_at <= now + FINE)):
            return None
        return latest(now + lead, next_at)


@dataclass(kw_only=True)
class Key:
    """A named limit; one whose name ends in a star is a group of those whose names begin like it."""

    id: int
    name: str
    limits: Limits
    override: Limits
    override_until: int | None = None
    is_paused: bool = False
    blocked_until: int | None = None
    fair_by: str | None = None
    weight: int = 1
    is_observed: bool = False

    @property
    def is_group(self) -> bool:
        """Return whether it chooses a member."""
        return self.name.endswith("*")

    def has(self, other: "Key") -> bool:
        """Return whether a key is a member of it."""
        return self.is_group and not other.is_group and other.name.startswith(self.name.rstrip("*"))


@dataclass(kw_only=True)
class Lane:
    """Calls of one kind."""

    id: int
    queue: str
    priority: int
    on_limit: str
    key_ids: list[int]
    place: int | None = READY
    served_at: int = 0
    last_served_at: int | None = None
    kept_until: float | None = None
    waits_from: int = LOWEST


@dataclass(kw_only=True)
class Call:
    """One call."""

    id: Any
    lane: int
    task: str
    position: int = 0
    key_costs: list[int | None] | None = None
    state: str = "available"
    attempt: int = 0
    returns: int = 0
    is_revoked: bool = False
    expires_at: int | None = None
    oversized: tuple[int, int] | None = None
    reason: str | None = None
    scheduled_at: int | None = None
    started_at: int | None = None
    finished_at: int | None = None
    chosen: dict[str, str] | None = None

    @property
    def waits(self) -> bool:
        """Return whether it may start."""
        return self.state == "available" and self.oversized is None


@dataclass(kw_only=True)
class Process:
    """A process of a worker that takes calls itself; of none that is known: a fetch that waits over HTTP."""

    worker: Any
    queues: list[str]
    idle_at: int | None = None
    is_over: bool = False
    """Whether the process has no session any more."""


@dataclass(kw_only=True)
class Worker:
    """A process that reports that it lives."""

    queues: list[str]
    tasks: list[str] | None
    seen_at: int
    serves_until: int
    is_gone: bool = False


class Slot(NamedTuple):
    """What a call in flight holds of a key."""

    call: Any
    key: int | None
    cost: int
    worker: Any
    started_at: int | None


class Start(NamedTuple):
    """What one trip has started of a key."""

    at: int
    total: int
    cost: int
    last_cost: int
    delayed: int | None = None
    longest: int | None = None
    allowed_at: int | None = None


class Note(NamedTuple):
    """What must be looked at, and when."""

    at: int
    lane: int | None
    key: int | None
    is_forced: bool = False
    position: int = LOWEST


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Durations of every trip, and since when it reads notes; see tuning.sql."""

    horizon: int = 200 * MILLISECOND
    lead: int = 5 * MILLISECOND
    slack: int = 20 * MILLISECOND
    paced_slack: int = 3 * MILLISECOND
    margin: int = 50 * MILLISECOND
    ramp: int = 8 * SECOND
    later: int = 60 * SECOND
    keep: int = 100 * MILLISECOND
    silence: int = 30 * SECOND
    notes: int | None = None
    lease: int = 60 * SECOND
    dispatch_lease: int = 90 * SECOND
    ahead: int = 100
    needs_worker: bool = False
    any_delivery: bool = False


@dataclass(kw_only=True)
class State:
    """All that a trip reads and writes."""

    keys: dict[int, Key] = field(default_factory=dict)
    lanes: dict[int, Lane] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    starts: dict[int, list[Start]] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    processes: dict[Any, Process] = field(default_factory=dict)
    workers: dict[Any, Worker] = field(default_factory=dict)
    deliveries: dict[str, str] = field(default_factory=dict)
    shares: dict[tuple[int, int, int], int] = field(default_factory=dict)
    """Where shares are, by key, priority and share."""

    def waiting(self, lane: int) -> list[Call]:
        """Return the calls of a lane that may start, in their order."""
        return sorted((call for call in self.calls if call.lane == lane and call.waits), key=lambda call: call.position)

    def members(self, group: Key) -> list[Key]:
        """Return the keys that a group may choose."""
        return [key for key in self.keys.values() if group.has(key)]

    def groups(self, key: Key) -> list[Key]:
        """Return the groups that a key is in, itself included."""
        return [group for group in self.keys.values() if (group is key and key.is_group) or group.has(key)]

    def front(self, place: int, queue: str) -> list[Lane]:
        """Return the lanes of a queue at a place, in the order in which they are served."""
        mine = [lane for lane in self.lanes.values() if lane.place == place and lane.queue == queue]
        return sorted(mine, key=lambda lane: (-lane.priority, lane.served_at, lane.id))

    def parked(self, key: int) -> list[Lane]:
        """Return the lanes that are parked on a key."""
        return [lane for lane in self.lanes.values() if lane.place == key]


@dataclass(kw_only=True)
class Room:
    """What a key allows, and what the trip takes of it; see room.sql."""

    id: int
    key: Key
    limits: Limits
    room: int
    own: int
    fits: int
    next_at: int | None
    held: int
    unstarted: int
    closed_until: float | None
    ramp_from: int | None
    is_counted: bool
    total: int | None
    last_at: int | None
    last_cost: int | None
    observed: "Observed | None" = None
    used: int = 0
    earlier: list[Start] = field(default_factory=list)

    def is_open(self, cost: int, until: int) -> bool:
        """Return whether a call of this cost may start."""
        return self.room >= cost and (self.next_at is None or self.next_at <= until)


@dataclass(kw_only=True)
class Observed:
    """What the limits of an observed key would have done; see observe.sql."""

    limits: Limits
    spent: int
    spent_from: int | None
    delayed: int
    longest: int | None
    allowed_at: int | None


@dataclass(frozen=True, kw_only=True)
class End:
    """How an attempt ended."""

    call: Call
    state: str
    reason: str | None = None
    wait: int | None = None
    is_stale: bool = False


@dataclass(frozen=True, kw_only=True)
class Trip:
    """What `take` is given."""

    now: int
    worker: Any
    queues: list[str]
    tasks: list[str] | None
    room: int
    becomes: str = "active"
    publish: int = 0
    process: Any = None
    is_marked: bool = False
    may_rest: bool = False
    keys: list[int] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    due: list[int] | None = None
    stride: list[int] | None = None
    is_strict: bool = False
    tuning: Tuning = Tuning()


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What `claim` is given."""

    now: int
    call: Call
    worker: Any
    ahead: int
    tuning: Tuning


@dataclass(kw_only=True)
class Answer:
    """What `take` returns."""

    started: list[Any]
    fates: dict[Any, str]
    wake: set[Any]
    publish: set[str]
    again_at: int | None
    ended: set[Any]
    freed: set[int]


def latest(*times: Any) -> Any:
    """Return the latest time that is known."""
    return max((time for time in times if time is not None), default=None)


def least(*values: Any) -> Any:
    """Return the smallest value that is known."""
    return min((value for value in values if value is not None), default=None)


def unknown_first(value: Any) -> tuple[bool, Any]:
    """Order what is unknown before all else."""
    return value is not None, value or 0


# What a key allows.


def room(state: State, key: Key, worker: Any, now: int, tuning: Tuning) -> Room:
    """Return what a key allows now, by the limits in force."""
    has_override = key.override_until is not None and key.override_until > now
    given = key.override if has_override else key.limits
    limits = Limits() if key.is_observed else given
    slots = [slot for slot in state.slots if slot.key == key.id]
    held = sum(slot.cost for slot in slots)
    unstarted = sum(slot.cost for slot in slots if slot.started_at is None)
    mine = sum(slot.cost for slot in slots if worker is not None and slot.worker == worker)
    is_counted = (
        key.is_observed
        or key.limits.is_timed
        or key.override.is_timed
        or (not key.is_group and any(group.has(key) for group in state.keys.values()))
    )
    starts = state.starts.get(key.id, [])
    last = max(starts, key=lambda start: (start.at, start.total), default=None)
    window = _counted(state, key, given, now, tuning)
    counted = sum(start.cost for start in window)
    blocked, ramp = key.blocked_until, tuning.ramp
    is_blocked = blocked is not None and blocked > now
    step = 8 * (now - blocked) // ramp if blocked is not None and blocked <= now < blocked + ramp else None
    free = least(
        None if limits.concurrency is None else limits.concurrency - held,
        None if limits.rate_limit is None else limits.rate_limit - unstarted - counted,
        None if step is None else (1 << step) - held,
        BIG,
    )
    next_at = None
    if limits.throttle_limit is not None:
        next_at = latest(now, None if last is None else last.at + limits.spacing(last.last_cost))
        next_at += limits.spacing(unstarted)
    own = BIG
    if limits.per_worker is not None:
        own = 0 if worker is None else limits.per_worker - mine
    return Room(
        id=key.id,
        key=key,
        limits=limits,
        room=0 if key.is_paused or is_blocked else max(0, free),
        own=own,
        fits=least(limits.concurrency or None, limits.per_worker, limits.rate_limit, BIG, limits.most_a_year),
        next_at=next_at,
        held=held,
        unstarted=unstarted,
        closed_until=inf if key.is_paused else blocked if is_blocked else None,
        ramp_from=blocked if blocked is not None and blocked + ramp > now else None,
        is_counted=is_counted,
        total=last and last.total,
        last_at=last and last.at,
        last_cost=last and last.last_cost,
        observed=Observed(
            limits=given,
            spent=counted,
            spent_from=min((start.at for start in window), default=None),
            delayed=(last and last.delayed) or 0,
            longest=last and last.longest,
            allowed_at=last and last.allowed_at,
        )
        if key.is_observed
        else None,
    )


def _counted(state: State, key: Key, limits: Limits, now: int, tuning: Tuning) -> list[Start]:
    """Return the starts that the window of a key counts."""
    if limits.rate_limit is None:
        return []
    assert limits.rate_period is not None
    since = now - limits.rate_period - tuning.margin
    return [start for start in state.starts.get(key.id, []) if start.at > since]


def observe(key: Room, cost: int, now: int, tuning: Tuning) -> None:
    """Count what the limits of a key would have done with a call that starts now, if it is observed."""
    seen = key.observed
    if seen is None:
        return
    limits, at = seen.limits, latest(now, seen.allowed_at)
    if limits.throttle_limit is not None and seen.allowed_at is not None:
        at = max(at, seen.allowed_at + limits.spacing(key.last_cost or 0))
    seen.spent += cost
    if limits.rate_limit is not None and limits.rate_period is not None and seen.spent > limits.rate_limit:
        first = now if seen.spent_from is None else seen.spent_from
        at = max(at, first + limits.rate_period + tuning.margin)
        if seen.allowed_at is not None and seen.allowed_at > now:
            at = max(at, seen.allowed_at + -(-limits.rate_period * (key.last_cost or 0) // limits.rate_limit))
    is_late = at > now + tuning.horizon
    is_over = limits.concurrency is not None and key.held - key.unstarted > limits.concurrency
    seen.allowed_at = min(at, now + 366 * 86_400 * SECOND)
    seen.longest = latest(seen.longest, seen.allowed_at - now) if is_late else seen.longest
    seen.delayed += is_late or is_over


def opening(state: State, key: Room, cost: int, now: int, tuning: Tuning) -> int | None:
    """Return when time lets a call start that this key stops; None if time does not."""
    limits, at = key.limits, now
    if key.closed_until == inf or (limits.concurrency is not None and limits.concurrency < key.held + cost):
        return None
    at = latest(at, key.closed_until)
    if key.ramp_from is not None and key.held + cost > 1:
        step = next((step for step in range(8) if 1 << step >= key.held + cost), 8)
        at = max(at, key.ramp_from + -(-tuning.ramp * step // 8))
    if limits.rate_limit is not None:
        at = max(at, _window_opens(state, key, cost, now, tuning))
    if key.next_at is not None:
        at = max(at, key.next_at - tuning.horizon)
    return None if at == now else at


def _window_opens(state: State, key: Room, cost: int, now: int, tuning: Tuning) -> int:
    limits = key.limits
    assert limits.rate_limit is not None
    assert limits.rate_period is not None
    counted = [(start.at, start.cost) for start in _counted(state, key.key, limits, now, tuning)]
    if started := key.used + sum(start.cost for start in key.earlier):
        counted.append((key.last_at or 0, started))
    excess = sum(each for _, each in counted) + key.unstarted + cost - limits.rate_limit
    if excess <= 0:
        return now
    for at, gone in counted:
        excess -= gone
        if excess <= 0:
            return at + limits.rate_period + tuning.margin
    return now + limits.rate_period + tuning.margin


def opens_at(state: State, key: Room, cost: int, keys: dict[int, Room], trip: Trip) -> int | None:
    """Return when time opens a key, or the first member of it that a call of this cost fits."""
    at = opening(state, key, cost, trip.now, trip.tuning)
    if at is not None or not key.key.is_group:
        return at
    members = [
        keys.get(member.id) or room(state, member, trip.worker, trip.now, trip.tuning)
        for member in state.members(key.key)
    ]
    return least(*(opening(state, each, cost, trip.now, trip.tuning) for each in members if each.fits >= cost))


# Whose turns a key gives.


def change_turns(state: State, key: Key, fair_by: str | None, now: int) -> None:
    """Let a key give its turns to other shares, or to lanes: they begin again."""
    if key.fair_by == fair_by:
        return
    key.fair_by = fair_by
    state.notes += [Note(now, lane.id, None, is_forced=True) for lane in state.parked(key.id)]
    state.shares = {line: turn for line, turn in state.shares.items() if line[0] != key.id}


# Who is woken.


def wake(state: State, queue: str, key: int | None, trip: Trip, *, other_than: Any = None) -> Any:
    """Take the idle mark of the process that has been idle for longest and may serve the queue; None: none is."""

    def may_hold(worker: Any) -> bool:
        if key is None or key not in state.keys:
            return True
        return room(state, state.keys[key], worker, trip.now, trip.tuning).own > 0

    idle = [
        (mark.idle_at, id)
        for id, mark in state.processes.items()
        if mark.idle_at is not None and queue in mark.queues and id != other_than
        if is_alive(state, mark, trip) and may_hold(mark.worker)
    ]
    if not idle:
        return None
    _, id = min(idle)
    state.processes[id].idle_at = None
    return id


def is_alive(state: State, mark: Process, trip: Trip) -> bool:
    """Return whether a process that is idle can be woken."""
    if mark.worker is not None and mark.is_over:
        return False
    seen = state.workers.get(mark.worker)
    seen_at = mark.idle_at if seen is None else seen.seen_at
    return (seen_at or 0) > trip.now - trip.tuning.silence and not (seen and seen.is_gone)


# One trip.


@dataclass(kw_only=True)
class Found:
    """What a trip may serve: lanes with who may take their calls, and what their keys allow."""

    open: set[int]
    keys: dict[int, Room] = field(default_factory=dict)
    lanes: dict[int, str] = field(default_factory=dict)
    turn_keys: set[int] = field(default_factory=set)
    is_parked: bool = False
    publish: dict[str, int] = field(default_factory=dict)
    full: set[str] = field(default_factory=set)


@dataclass(frozen=True, kw_only=True)
class Fate:
    """What becomes of a call that does not start."""

    call: Call
    fate: str
    at: int
    key: int | None = None
    cost: int = 1


class Move(NamedTuple):
    """Where a lane goes that does not go on."""

    place: int | None
    served_at: int | None = None
    kept_until: float | None = None
    is_turn: bool = False


class Line(NamedTuple):
    """A share that takes turns on a key: those of one priority."""

    key: int
    priority: int
    share: int


@dataclass(kw_only=True)
class Seat:
    """A lane whose share takes turns, its turn if it has one, and what its share has paid for that."""

    line: Line
    weight: int
    turn: int | None = None
    paid: int = 0
    is_new: bool = True
    """Whether it was not in line when the trip found it."""

    @property
    def clock(self) -> Line:
        """The clock of the key: the turn that started last."""
        return self.line._replace(share=CLOCK)

    def length(self, cost: int) -> int:
        """Return how long a start lasts on the clock."""
        return TURN * cost // self.weight


@dataclass(kw_only=True)
class Chosen:
    """What a trip has decided."""

    starts: dict[Any, tuple[Call, int, str, dict[str, str] | None]] = field(default_factory=dict)
    spent: list[tuple[Any, int | None, int]] = field(default_factory=list)
    fates: list[Fate] = field(default_factory=list)
    served: list[int] = field(default_factory=list)
    moves: dict[int, Move] = field(default_factory=dict)
    notes: set[Note] = field(default_factory=set)
    wake: list[Any] = field(default_factory=list)
    open: set[int] = field(default_factory=set)
    left: int = 0
    publish: dict[str, int] = field(default_factory=dict)
    paid: dict[Line, int] = field(default_factory=dict)


def take(state: State, trip: Trip) -> Answer:
    """Record the ends, and start what has room."""
    ended, freed = _record_ends(state, trip)
    looked_at = {*trip.keys, *freed}
    queues: set[str] = set()
    found = _find(state, trip, looked_at, queues)
    chosen = _Choice(state, trip, found).made()
    _write(state, trip, found, chosen)
    return _leave(state, trip, found, chosen, queues, ended=ended, freed=freed)


def _record_ends(state: State, trip: Trip) -> tuple[set[Any], set[int]]:
    ended = {end.call.id for end in trip.ends if not end.is_stale and end.call.state == "active"}
    for end in trip.ends:
        if end.call.id not in ended:
            continue
        call = end.call
        call.state, call.reason, call.returns = end.state, end.reason, 0
        call.scheduled_at = call.scheduled_at if end.wait is None else trip.now + end.wait
        is_terminal = end.state in ("completed", "cancelled", "discarded")
        call.finished_at = trip.now if is_terminal else None
    freed = {slot.key for slot in state.slots if slot.call in ended and slot.key is not None}
    state.slots = [slot for slot in state.slots if slot.call not in ended]
    back = [end.call for end in trip.ends if end.call.id in ended and end.state == "available"]
    for lane in {call.lane for call in back}:
        first = min(call.position for call in back if call.lane == lane)
        state.notes.append(Note(trip.now, lane, None, is_forced=True, position=first))
    return ended, freed


def _read_notes(state: State, trip: Trip, own: list[str], queues: set[str]) -> tuple[set[int], list[Lane]]:
    """Return the keys to look at, and the lanes that slept and are served; add the queues of those that are ready.

    A lane is looked at from the position on that a note says. If it sleeps, and no call of it comes before those that
    were sent since, the worker of its queue serves it as it is.
    """
    since = -inf if trip.tuning.notes is None else trip.tuning.notes
    due = [note for note in state.notes if since < note.at <= trip.now]
    noted: dict[int, Note] = {}
    for note in due:
        state.notes.remove(note)
        if note.lane in state.lanes:
            other = noted.get(note.lane, note)
            noted[note.lane] = note._replace(
                is_forced=note.is_forced or other.is_forced, position=min(note.position, other.position)
            )
    asleep = [
        lane
        for id, note in noted.items()
        if (lane := state.lanes[id]).place is None and lane.queue in own and note.position >= lane.waits_from
    ]
    served = sorted(asleep, key=lambda lane: (-lane.priority, lane.served_at, lane.id))[: trip.room]
    for id, note in noted.items():
        lane = state.lanes[id]
        if lane in served:
            continue
        comes_first = note.position < lane.waits_from
        lane.waits_from = min(lane.waits_from, note.position)
        if lane.place is None or ((note.is_forced or comes_first) and lane.place != READY):
            _make_ready(lane)
            queues.add(lane.queue)
    return {note.key for note in due if note.key is not None}, served


def _make_ready(lane: Lane) -> None:
    lane.place = READY
    lane.served_at = lane.served_at if lane.last_served_at is None else lane.last_served_at


def _find(state: State, trip: Trip, looked_at: set[int], made_ready: set[str]) -> Found:
    now, tuning = trip.now, trip.tuning
    delivery = "broker" if trip.becomes == "dispatched" else "direct"
    queues = [
        queue
        for queue in trip.queues
        if trip.room and (tuning.any_delivery or state.deliveries.get(queue, "broker") == delivery)
    ]
    found = Found(open=looked_at)
    if trip.becomes == "dispatched":
        rooms = {queue: _queue_room(state, queue, trip.room, trip) for queue in queues}
        found.publish = {queue: most for queue, most in rooms.items() if most > 0}
        found.full = rooms.keys() - found.publish.keys()
        queues = [*found.publish]
    keys, slept = _read_notes(state, trip, queues, made_ready)
    found.open |= keys
    found.lanes |= dict.fromkeys((lane.id for lane in slept), "mine")
    ready = {queue: state.front(READY, queue) for queue in queues}
    for lanes in ready.values():
        found.lanes |= dict.fromkeys((lane.id for lane in lanes[: trip.room]), "mine")
    found.lanes |= dict.fromkeys(_limited(state, trip, queues), "mine")
    kept = [lane for lane in state.lanes.values() if lane.kept_until is not None and lane.queue in queues]
    found.open |= {lane.place for lane in kept if lane.place is not None and lane.place > 0}
    is_full = len(found.lanes) >= trip.room
    _count(state, trip, found, found.open | _keys_of(state, found.lanes))
    if is_full and any(key.key.fair_by is not None for key in found.keys.values()):
        for lanes in ready.values():  # Others that are ready are to stand in line, too.
            found.lanes |= dict.fromkeys((lane.id for lane in lanes[: trip.room + 50]), "mine")
    found.is_parked = any(state.parked(id) for id in found.keys)
    shut = [key.id for key in found.keys.values() if key.room <= 0 or not key.is_open(1, now + tuning.horizon)]
    # Room was kept in vain, and its workers come now, when there is none: it is kept again, when its turn comes.
    found.lanes |= {lane.id: "mine" for lane in kept if lane.kept_until <= now and lane.place in shut}
    for key in [key for key in found.keys.values() if key.id not in shut]:
        for queue in sorted({lane.queue for lane in state.parked(key.id)}):
            found.turn_keys.add(key.id)
            taker = _taker(state, trip, queue, queues)
            if taker is None:
                continue
            if taker == "published" and queue not in found.publish:
                most = _queue_room(state, queue, trip.publish, trip)
                if most == 0:
                    continue
                found.publish[queue] = most
            first = state.front(key.id, queue)[: min(key.room, max(trip.room, 1))]
            found.lanes |= dict.fromkeys((lane.id for lane in first), taker)
    _count(state, trip, found, _keys_of(state, found.lanes))
    return found


def _taker(state: State, trip: Trip, queue: str, queues: list[str]) -> str | None:
    if queue in queues:
        return "mine"
    delivery = state.deliveries.get(queue, "broker")
    if delivery == "broker":
        return "published"
    has_others = any(queue in mark.queues for mark in state.processes.values() if mark.worker != trip.worker)
    return "others" if delivery == "http" or has_others else None


def _keys_of(state: State, lanes: Iterable[int]) -> set[int]:
    return {key for lane in lanes for key in all_keys(state, state.lanes[lane])}


def all_keys(state: State, lane: Lane) -> list[int]:
    """Return the keys that a call of the lane spends: those that it names, and its queue's own."""
    own = [key.id for key in state.keys.values() if key.name == f"queue:{lane.queue}" and key.id not in lane.key_ids]
    return [*lane.key_ids, *own]


def _queue_room(state: State, queue: str, want: int, trip: Trip) -> int:
    is_served = any(queue in each.queues and each.serves_until > trip.now for each in state.workers.values())
    if want <= 0 or (trip.tuning.needs_worker and not is_served):
        return 0
    unclaimed = sum(call.state == "dispatched" and state.lanes[call.lane].queue == queue for call in state.calls)
    left = trip.tuning.ahead - unclaimed
    return min(want, left) if left >= max(1, min(want, trip.tuning.ahead // 100)) else 0


def _limited(state: State, trip: Trip, queues: list[str]) -> list[int]:
    """Return the lanes that a worker with room of its own may serve."""
    rooms = [room(state, key, trip.worker, trip.now, trip.tuning) for key in state.keys.values()]
    held = {slot.key for slot in state.slots if trip.worker is not None and slot.worker == trip.worker}
    reached = {key.id for key in rooms if key.id in held and key.own <= 0}
    lanes = [lane for queue in queues for lane in state.front(LIMITED, queue)[:50] if not reached & {*lane.key_ids}]
    return [lane.id for lane in sorted(lanes, key=lambda lane: (-lane.priority, lane.served_at, lane.id))][: trip.room]


def _count(state: State, trip: Trip, found: Found, ids: set[int]) -> None:
    """Count what keys allow; of a group, whose room is that of its members, those with most room, too."""
    now, until, most = trip.now, trip.now + trip.tuning.horizon, trip.room + trip.publish
    wanted = [state.keys[id] for id in sorted(ids) if id in state.keys and id not in found.keys]
    groups = {group.id: group for key in wanted for group in state.groups(key)}
    known = {*found.keys}
    found.open |= {*groups}

    def counted(key: Key) -> Room:
        return room(state, key, trip.worker, now, trip.tuning)

    def rank(member: Room) -> tuple[Any, ...]:
        is_open = member.is_open(1, until)
        return (not (is_open and member.own > 0), not is_open, -member.room, unknown_first(member.last_at), member.id)

    for key in wanted:
        found.keys[key.id] = counted(key)
    for group in groups.values():
        if group.id in known:
            continue
        members = sorted(map(counted, state.members(group)), key=rank)
        whole = found.keys.setdefault(group.id, counted(group))
        whole.room = min(whole.room, sum(member.room for member in members if member.is_open(1, until)))
        whole.fits = least(whole.fits, max((member.fits for member in members), default=None))
        for member in members[: most + 1]:
            found.keys.setdefault(member.id, member)


class _Choice:
    """Who goes first, and what stops a call."""

    def __init__(self, state: State, trip: Trip, found: Found) -> None:
        self.state, self.trip, self.found = state, trip, found
        self.now, self.until = trip.now, trip.now + trip.tuning.horizon
        self.keys = found.keys
        self.chosen = Chosen(left=trip.room, open={*found.open}, publish=dict(found.publish))
        self.publish = self.chosen.publish
        self.due = dict(zip(trip.queues, trip.due or (), strict=trip.due is not None))
        self.stride = dict(zip(trip.queues, trip.stride or (), strict=trip.stride is not None))
        self.done: set[int] = set()
        self.over: set[Any] = set()
        self.met: dict[int, int] = {}
        self.behind: dict[int, int] = {}
        self.seats = self._seats()
        self.next = self._next()
        self.was = dict(self.next)
        turns = [(seat.line, self._turn_now(seat)) for seat in self.seats.values()]
        self.first = {line[:2]: min(turn for one, turn in turns if one[:2] == line[:2]) for line, _ in turns}
        takers = {*found.lanes.values()}
        self.is_one_by_one = bool(trip.due or trip.is_strict or len(found.publish) > 1 or takers - {"mine"})

    # Shares take turns.

    def _seats(self) -> dict[int, Seat]:
        """Return the lanes that take turns by share, on the first key by name that says so and is locked."""
        seats = {}
        for id in self.found.lanes:
            lane = self.state.lanes[id]
            keys = [self.state.keys[key] for key in all_keys(self.state, lane) if key in self.state.keys]
            keys.sort(key=lambda key: key.name)
            fair = next((key for key in keys if key.fair_by is not None), None)
            if fair is None or lane.on_limit != "wait":
                continue
            assert fair.fair_by is not None
            prefix = fair.fair_by.rstrip("*")
            share = next((key for key in keys if key is not fair and key.name.startswith(prefix)), None)
            line = Line(fair.id, lane.priority, share.id if share else 0)
            seats[id] = seat = Seat(line=line, weight=share.weight if share else 1)
            if lane.last_served_at is None:
                continue
            calls = self.state.waiting(id)
            seat.paid = seat.length(self._cost(lane, calls[0], fair.id) if calls else 1)
            seat.turn = lane.served_at if lane.place == fair.id else None
            seat.is_new = seat.turn is None
        return seats

    def _next(self) -> dict[Line, int]:
        """Return where the shares are: who comes new begins at the clock; who has paid and left gets it back."""
        found = {}
        for seat in self.seats.values():
            mine = [each for each in self.seats.values() if each.line == seat.line]
            clock = self.state.shares.get(seat.clock, FIRST_TURN)
            stored = self.state.shares.get(seat.line)
            found[seat.clock], found[seat.line] = clock, clock
            if stored is not None:
                is_in_line = any(each.turn is not None for each in mine)
                stored -= sum(each.paid for each in mine if each.turn is None)
                found[seat.line] = max(stored, clock - 100 * TURN * is_in_line)
        return found

    @staticmethod
    def _cost(lane: Lane, call: Call, key: int) -> int:
        costs = call.key_costs or []
        place = lane.key_ids.index(key) if key in lane.key_ids else len(lane.key_ids)
        return (costs[place] if place < len(costs) else None) or 1

    def _turn_now(self, seat: Seat) -> int:
        # Who comes new is before those in line with the same turn.
        return self.next[seat.line] - seat.is_new if seat.turn is None else seat.turn

    def _is_behind(self, lane: Lane) -> bool:
        """Return whether another lane of its share comes first: the least often met, then the least recently served."""
        seat = self.seats.get(lane.id)
        if seat is None or seat.turn is not None or self.is_one_by_one:
            return False
        mine = [
            each
            for each in self._lanes()
            if each.id in self.seats and self.seats[each.id].line == seat.line and self.seats[each.id].turn is None
        ]
        return lane is not min(mine, key=lambda each: (self.met.get(each.id, 0), each.served_at, each.id))

    def _round(self, lane: Lane) -> int:
        """Return how far its next call is behind the first of its key, as if each round had a start of cost 1."""
        if lane.id not in self.seats or len(self.found.lanes) == 1:
            return TURN * (self.met.get(lane.id, 0) + 1)
        seat = self.seats[lane.id]
        return TURN + self._turn_now(seat) - self.first[seat.line[:2]]

    def _take_turn(self, seat: Seat, cost: int) -> None:
        """Give a lane its turn, if it has none: its share pays for it."""
        if seat.turn is None:
            seat.turn, seat.paid = self.next[seat.line], seat.length(cost)
            self.next[seat.line] += seat.paid

    def _start_turn(self, lane: Lane, call: Call) -> None:
        """Move the clock to its turn; without one its share pays, and the clock moves only if no lane waits."""
        seat = self.seats[lane.id]
        if seat.turn is not None:
            self.next[seat.clock] = max(self.next[seat.clock], seat.turn)
            seat.turn = None
            return
        if seat.line.key not in self.found.turn_keys:
            self.next[seat.clock] = max(self.next[seat.clock], self.next[seat.line])
        self.next[seat.line] += seat.length(self._cost(lane, call, seat.line.key))

    def _line_up(self) -> None:
        """Let what waits for a fair key that is short, or beside others, stand in line; pay back who leaves."""
        served = {id: n for n, id in enumerate(self.chosen.served)}
        lanes = [self.state.lanes[id] for id in self.seats]
        for lane in sorted(lanes, key=lambda lane: (unknown_first(served.get(lane.id)), lane.served_at, lane.id)):
            seat, rest = self.seats[lane.id], self._rest(lane)
            key = self.keys[seat.line.key]
            is_alone = sum(other.line.key == key.id for other in self.seats.values()) == 1
            waits = not is_alone or not key.is_open(1, self.until) or key.id in self.found.turn_keys
            if rest and waits and lane.id not in self.chosen.moves:
                self._take_turn(seat, self._cost(lane, rest[0], key.id))
                self.chosen.moves[lane.id] = Move(key.id, seat.turn, None, is_turn=True)
                self.chosen.open.add(key.id)
        for id, seat in self.seats.items():
            if seat.turn is not None and not (id in self.chosen.moves and self.chosen.moves[id].is_turn):
                self.next[seat.line] -= seat.paid
        waited = self.found.turn_keys | {move.place for move in self.chosen.moves.values() if move.is_turn}
        self.chosen.paid = {
            line: turn for line, turn in self.next.items() if line.key in waited and turn != self.was[line]
        }

    def made(self) -> Chosen:
        """Return what starts, what else becomes of calls, and where lanes go."""
        while (lane := min(self._first_lanes(), key=self._order, default=None)) is not None:
            self.met[lane.id] = self.met.get(lane.id, 0) + 1
            self._meet(lane, self._rest(lane)[0], self.found.lanes[lane.id])
        for id, move in self.chosen.moves.items():  # Passed over for nothing: any worker of its queue finds it ready.
            if move.kept_until == inf and self.keys[move.place].is_open(1, self.until):
                seat = self.seats.get(id)
                turn = seat.turn if seat else None
                self.chosen.moves[id] = Move(READY) if turn is None else Move(move.place, turn, self.now, is_turn=True)
        self._park()
        self._line_up()
        return self.chosen

    def _park(self) -> None:
        """Park lanes that wait for a key without room, where the process has no room to look at their calls."""
        for key in sorted(self.keys.values(), key=lambda key: key.id) if self.chosen.left == 0 else []:
            for id, taker in self.found.lanes.items():
                lane = self.state.lanes[id]
                waits = taker == "mine" and lane.on_limit == "wait" and self._rest(lane)
                if (
                    key.room <= 0
                    and waits
                    and key.id in all_keys(self.state, lane)
                    and id not in self.done | {*self.seats}
                ):
                    self.done.add(id)
                    self.chosen.moves[id] = Move(key.id)
                    self.chosen.open.add(key.id)

    def _lanes(self) -> list[Lane]:
        """Return the lanes of which a call may start still."""
        lanes = [self.state.lanes[id] for id in self.found.lanes if id not in self.done]
        return [lane for lane in lanes if self._rest(lane) and not self._is_full(lane)]

    def _first_lanes(self) -> list[Lane]:
        return [lane for lane in self._lanes() if not self._is_behind(lane)]

    def _is_full(self, lane: Lane) -> bool:
        taker = self.found.lanes[lane.id]
        is_published = taker == "published" or self.trip.becomes == "dispatched"
        return (taker == "mine" and self.chosen.left == 0) or (is_published and self.publish.get(lane.queue) == 0)

    def _rest(self, lane: Lane) -> list[Call]:
        return [call for call in self.state.waiting(lane.id) if call.id not in self.over]

    def _order(self, lane: Lane) -> tuple[Any, ...]:
        """Order lanes by priority, the queue that is due by its weight, if room was kept, the least recently served."""
        is_mine = lane.queue in self.trip.queues
        place = self.trip.queues.index(lane.queue) + 1 if is_mine else 0
        strictly = max(place, 1) if self.trip.is_strict else 0
        due = self.due[lane.queue] + self.stride[lane.queue] if self.stride and is_mine else -inf
        tie = place if self.stride else 0
        is_kept = self.found.lanes[lane.id] == "mine" and lane.kept_until not in (None, inf)
        is_in_line = lane.last_served_at is not None
        # In line served_at is a turn, and room was only shown where it is not kept still.
        is_kept = is_kept and (not is_in_line or lane.kept_until > self.now)
        served_at = -inf if is_kept else lane.last_served_at if is_in_line else lane.served_at
        return (strictly, -lane.priority, due, self._round(lane), tie, served_at, lane.id)

    def _meet(self, lane: Lane, call: Call, taker: str) -> None:
        """Decide about one call."""
        chosen, trip = self.chosen, self.trip
        fate = self._fate(call, taker)
        kind, by, cost, spent = (9, None, 1, []) if fate else self._stopped(lane, call, taker)
        at = self.now
        for key, paid in spent:
            at = latest(at, key.limits.paced(key.next_at, paid, self.now, trip.tuning.lead))
        member = {key.key.name: self._member_of(key, spent) for key, _ in spent if key.key.is_group}
        names = {group: name for group, name in member.items() if name}

        if fate or kind == 1 or (kind == 2 and lane.on_limit != "wait"):
            opens = self._put_off(by, cost) if by and kind == 2 and lane.on_limit == "reschedule" else None
            fate = fate or ("dropped" if lane.on_limit == "drop" else "oversized" if kind == 1 else "later")
            when = self.now + trip.tuning.later if opens is None else opens
            chosen.fates.append(Fate(call=call, fate=fate, at=when, key=by and by.id, cost=cost))
            self.over.add(call.id)
            return
        if kind < 9:
            assert by is not None
            self._stop(
                lane, kind, by, cost, is_own=taker == "mine" and (trip.becomes == "active" or trip.worker is not None)
            )
            return
        if taker == "others":
            until = self._left_until(lane)
            if until is None:
                return
            chosen.notes |= {Note(until, None, key.id) for key, _ in spent}
        else:
            state = trip.becomes if taker == "mine" else "dispatched"
            chosen.starts[call.id] = (call, at, state, names or None)
            self.over.add(call.id)
            if lane.id in self.seats:
                self._start_turn(lane, call)
            chosen.served = [each for each in chosen.served if each != lane.id] + [lane.id]
            if lane.queue in self.publish and (taker == "published" or trip.becomes == "dispatched"):
                self.publish[lane.queue] -= 1
            if taker == "mine":
                chosen.left -= 1
                if lane.queue in self.stride:
                    self.due[lane.queue] += self.stride[lane.queue]
            chosen.spent += [(call.id, key.id, each) for key, each in spent] or [(call.id, None, 1)]
        self._spend(spent, at, taker)

    def _put_off(self, by: Room, cost: int) -> int | None:
        """Return when a call that is put off may start, after those that were put off before it."""
        behind = self.behind.get(by.id, 0)
        later = replace(by, unstarted=by.unstarted + behind)
        if by.next_at is not None:
            later.next_at = by.next_at + by.limits.spacing(behind)
        self.behind[by.id] = behind + cost
        return opens_at(self.state, later, cost, self.keys, self.trip)

    def _fate(self, call: Call, taker: str) -> str | None:
        if call.is_revoked:
            return "cancelled"
        if call.expires_at is not None and call.expires_at <= self.now:
            return "expired"
        knows = self.trip.tasks is None or call.task in self.trip.tasks
        return "unknown" if taker == "mine" and self.trip.becomes == "active" and not knows else None

    def _stopped(self, lane: Lane, call: Call, taker: str) -> tuple[int, Room | None, int, list[tuple[Room, int]]]:
        """Return what stops a call, and what it spends.

        1: a limit that never allows it; 2: a limit; 4: what its worker holds.
        """
        kind, by, by_cost = 9, None, 1
        spent: list[tuple[Room, int]] = []
        for place, id in enumerate(all_keys(self.state, lane)):
            costs = call.key_costs or []
            cost = (costs[place] if place < len(costs) else None) or 1
            key = self.keys.get(id)
            if key is None:
                continue
            member = self._member(key, cost) if key.key.is_group else None
            if key.fits < cost:
                why = 1
            elif not key.is_open(cost, self.until) or (key.key.is_group and member is None):
                why = 2
            elif taker == "mine" and (key.own < cost or (member is not None and member.own < cost)):
                why = 4
            elif taker == "published" and any(each.limits.per_worker is not None for each in (key, member) if each):
                why = 4  # The broker chooses the worker.
            else:
                why = 9
            if why < kind:
                kind, by, by_cost = why, key, cost
            spent += [(each, cost) for each in (key, member) if each is not None]
        return kind, by, by_cost, spent

    def _member(self, group: Room, cost: int) -> Room | None:
        """Return the member with most room, of this worker if any."""
        fit = [
            member
            for member in self.keys.values()
            if group.key.has(member.key) and member.fits >= cost and member.is_open(cost, self.until)
        ]
        return min(
            fit,
            key=lambda member: (not member.own >= cost, -member.room, unknown_first(member.last_at), member.id),
            default=None,
        )

    def _member_of(self, group: Room, spent: list[tuple[Room, int]]) -> str | None:
        """Return the name of the member that was chosen: it comes after its group."""
        place = next(n for n, (key, _) in enumerate(spent) if key is group) + 1
        return spent[place][0].key.name if place < len(spent) and group.key.has(spent[place][0].key) else None

    def _stop(self, lane: Lane, kind: int, by: Room, cost: int, *, is_own: bool) -> None:
        self.done.add(lane.id)
        self.chosen.moves[lane.id] = Move(LIMITED if kind == 4 and is_own else by.id)
        seat = self.seats.get(lane.id)
        if kind == 2 and seat is not None and by.id == seat.line.key:
            self._take_turn(seat, cost)
            self.chosen.moves[lane.id] = Move(by.id, seat.turn, None, is_turn=True)
        if kind == 2:
            by.room = 0
            self.chosen.open.add(by.id)
            opens = opens_at(self.state, by, cost, self.keys, self.trip)
            if opens is not None:
                self.chosen.notes.add(Note(opens, None, by.id))
        elif is_own:
            by.own = 0
            self.chosen.wake.append(wake(self.state, lane.queue, by.id, self.trip))

    def _left_until(self, lane: Lane) -> int | None:
        """Decide about a lane that is first and others' to serve; return until when room is kept for it, if it is."""
        now, chosen = self.now, self.chosen
        assert lane.place is not None
        self.done.add(lane.id)
        until = None if lane.kept_until in (None, inf) else lane.kept_until
        if until is None:
            worker = wake(self.state, lane.queue, lane.place, self.trip)
            chosen.wake.append(worker)
            if worker is not None:
                until = now + 100 * MILLISECOND
            elif lane.kept_until == inf:
                until = now if self._is_missed(lane.queue) else now + self.trip.tuning.keep
        seat = self.seats.get(lane.id)
        turn = seat.turn if seat else None
        if until is None:
            served_at = now if seat is None or turn is None else turn + seat.paid
            chosen.moves[lane.id] = Move(lane.place, served_at, inf, is_turn=turn is not None)
            return None
        if until <= now:
            is_turn = turn is not None
            chosen.moves[lane.id] = Move(lane.place if is_turn else READY, turn, until, is_turn=is_turn)
            return None
        chosen.moves[lane.id] = Move(lane.place, turn, until, is_turn=turn is not None)
        return int(until)

    def _is_missed(self, queue: str) -> bool:
        """Return whether room was kept in vain for a lane of the queue that no worker has looked at since."""
        lanes = [lane for lane in self.state.lanes.values() if lane.queue == queue and lane.place == READY]
        return any(lane.kept_until is not None and lane.kept_until <= self.now for lane in lanes)

    def _spend(self, spent: list[tuple[Room, int]], at: int, taker: str) -> None:
        for key, cost in spent:
            key.room -= cost
            counted_at = at + self.trip.tuning.slack
            if key.next_at is not None:
                starts = taker == "mine" and self.trip.becomes == "active"
                counted_at = max(at, key.next_at) + (self.trip.tuning.paced_slack if starts and at > self.now else 0)
                key.next_at = counted_at + key.limits.spacing(cost)
            if taker == "others":
                continue
            key.own -= cost
            key.held += cost
            if taker == "mine" and self.trip.becomes == "active":
                observe(key, cost, self.now, self.trip.tuning)
                start_at = latest(key.last_at, counted_at)
                if key.used and key.last_at < start_at:
                    _close_start(key)
                key.used += cost
                key.last_cost, key.last_at = cost, start_at
            else:
                key.unstarted += cost


def _write(state: State, trip: Trip, found: Found, chosen: Chosen) -> None:
    for call, at, became, names in chosen.starts.values():
        is_active = became == "active"
        call.state, call.chosen = became, names
        call.started_at = at if is_active else None
        call.attempt += is_active
        call.returns = 0 if is_active else call.returns
        worker, started_at = (trip.worker, at) if is_active else (None, None)
        spent = [(key, cost) for id, key, cost in chosen.spent if id == call.id]
        state.slots += [Slot(call.id, key, cost, worker, started_at) for key, cost in spent]
    if chosen.starts:
        count_starts(state, found.keys.values())
    for fate in chosen.fates:
        _settle(state, trip, fate)
    state.shares |= chosen.paid
    is_shared = found.is_parked or len(found.lanes) > 1
    for id, settled in [(id, _settled(state, trip, id, chosen, is_shared=is_shared)) for id in found.lanes]:
        state.lanes[id] = settled


def _settled(state: State, trip: Trip, id: int, chosen: Chosen, *, is_shared: bool) -> Lane:
    """Return where a lane is after the trip.

    A lane that is served alone keeps its turn for a minute, or until its first call has moved on by some positions:
    neither another lane of the trip, nor one that is ready in a queue of the worker, nor one that is parked on a key of
    the trip waits.
    """
    lane, move, calls = state.lanes[id], chosen.moves.get(id), state.waiting(id)
    is_served = id in chosen.served
    mine = [call.position for call, *_ in chosen.starts.values() if call.lane == id]
    after = replace(
        lane,
        place=move.place if move else READY if calls else None,
        kept_until=move.kept_until if move else None,
        waits_from=calls[0].position if calls else max(mine) + 1 if mine else lane.waits_from,
    )
    others = [each for each in state.lanes.values() if each is not lane and each.queue in trip.queues]
    is_written = (
        (after.place, after.kept_until) != (lane.place, lane.kept_until)
        or (move is not None and move.served_at is not None)
        or lane.last_served_at is not None
        or after.waits_from >= lane.waits_from + HINTS_APART
        or (is_served and (is_shared or any(other.place == READY for other in others)))
        or (is_served and lane.served_at < trip.now - 60 * SECOND)
    )
    if not is_written:
        return lane
    served_at = lane.served_at if lane.last_served_at is None else lane.last_served_at
    served_at = trip.now + chosen.served.index(id) + 1 if is_served else served_at
    after.served_at = served_at if move is None or move.served_at is None else move.served_at
    after.last_served_at = served_at if move and move.is_turn else None
    return after


def _close_start(key: Room) -> None:
    """Let what the trip has started so far count by its own time."""
    start = Start(key.last_at or 0, (key.total or 0) + key.used, key.used, key.last_cost or 0)
    if key.observed is not None:
        seen = key.observed
        start = start._replace(delayed=seen.delayed, longest=seen.longest, allowed_at=seen.allowed_at)
    key.earlier.append(start)
    key.total, key.used = start.total, 0


def count_starts(state: State, keys: Iterable[Room]) -> None:
    """Record what was started of keys whose starts count."""
    for key in keys:
        if key.used:
            _close_start(key)
        if key.is_counted and key.earlier:
            state.starts.setdefault(key.id, []).extend(key.earlier)
        key.earlier = []


def _settle(state: State, trip: Trip, fate: Fate) -> None:
    call, now = fate.call, trip.now
    ends = {"dropped": "discarded", "expired": "discarded", "cancelled": "cancelled", "oversized": "available"}
    call.state = ends.get(fate.fate, "scheduled")
    call.reason = {"dropped": "limit", "expired": "expired"}.get(fate.fate)
    call.finished_at = now if fate.fate in ("dropped", "expired", "cancelled") else None
    call.oversized = (fate.key or 0, fate.cost) if fate.fate == "oversized" else None
    if fate.fate == "later":
        call.scheduled_at = fate.at
    if fate.fate == "unknown":
        queue, first = state.lanes[call.lane].queue, min(60 * SECOND, trip.tuning.dispatch_lease)
        is_known = any(
            queue in worker.queues and worker.serves_until > now and (worker.tasks is None or call.task in worker.tasks)
            for worker in state.workers.values()
        )
        longer = min(first * 2 ** min(call.returns, 20), 12 * trip.tuning.dispatch_lease)
        call.scheduled_at = now + (min(SECOND // 2 * (call.returns + 1), first) if is_known else longer)
        call.returns += 1


def _leave(
    state: State,
    trip: Trip,
    found: Found,
    chosen: Chosen,
    queues: set[str],
    *,
    ended: set[Any],
    freed: set[int],
) -> Answer:
    """Note what must be looked at later; let the room that is left go to lanes parked on it."""
    now, until = trip.now, trip.now + trip.tuning.horizon
    queues |= {state.lanes[id].queue for id, taker in found.lanes.items() if taker != "mine"}
    fair: set[str] = set()
    # Of keys that only lanes spend which are to stand in line, ends and notes let those go that are parked on them.
    looked_at = chosen.open | found.turn_keys if found.is_parked or chosen.moves else set()
    for key in found.keys.values():
        if key.id not in looked_at or not state.parked(key.id):
            continue
        if key.is_open(1, until) and key.key.fair_by is not None:
            fair |= _show(state, key.id, now)
        elif key.is_open(1, until):
            queues |= _free(state, key, chosen)
        else:
            opens = opens_at(state, key, 1, found.keys, trip)
            if opens is not None:
                chosen.notes.add(Note(opens, None, key.id))
    since = -inf if trip.tuning.notes is None else trip.tuning.notes
    earlier = [each for each in state.notes if each.at > since]
    state.notes += [
        note for note in chosen.notes if not any(each.key == note.key and each.at <= note.at for each in earlier)
    ]
    again_at = least(*(note.at for note in chosen.notes)) if trip.becomes == "active" else None
    is_useful = chosen.left <= 0 or bool(chosen.starts or chosen.fates)
    is_useful |= any(not move.is_turn for move in chosen.moves.values())
    ready = {lane.queue for lane in state.lanes.values() if lane.place == READY and lane.queue in trip.queues}
    queues |= ready
    full = {queue for queue in queues | fair if _is_bounded(trip, found, chosen, queue)}
    if (ready | fair & {*trip.queues}) - full and trip.room > 0:
        again_at = now if is_useful else least(again_at, now + 20 * MILLISECOND)
    woken, publish = _wake_others(state, trip, chosen, queues, fair, is_useful=is_useful)
    again_at = _rest(state, trip, chosen, again_at)
    return Answer(
        started=[*chosen.starts],
        fates={fate.call.id: fate.fate for fate in chosen.fates},
        wake=woken,
        publish=publish - full,
        again_at=again_at,
        ended=ended,
        freed=freed,
    )


def _wake_others(
    state: State, trip: Trip, chosen: Chosen, queues: set[str], fair: set[str], *, is_useful: bool
) -> tuple[set[Any], set[str]]:
    """Return the processes that the trip wakes, and the queues that are to be published.

    A trip that could have served the ready lanes of its queues, and did nothing, found them locked.
    """
    woken, publish = {each for each in chosen.wake if each is not None}, set[str]()
    for queue in sorted(queues | fair):
        if queue not in fair and not state.front(READY, queue):
            continue
        delivery = state.deliveries.get(queue, "broker")
        if delivery == "broker":
            publish.add(queue)
        elif is_useful or queue not in trip.queues or delivery != "direct" or trip.becomes != "active":
            woken |= {wake(state, queue, None, trip, other_than=trip.process)} - {None}
    return woken, publish


def _is_bounded(trip: Trip, found: Found, chosen: Chosen, queue: str) -> bool:
    """Return whether as many calls of a queue are on their way as may be, as far as the trip has counted them."""
    want = trip.room if trip.becomes == "dispatched" and queue in trip.queues else trip.publish
    return queue in found.full or (chosen.publish.get(queue) == 0 and found.publish[queue] < want)


def _rest(state: State, trip: Trip, chosen: Chosen, again_at: int | None) -> int | None:
    """Mark the process as idle whose trip starts nothing for it, or take the mark away; return when it comes again."""
    mine, has_started = state.processes.get(trip.process), chosen.left < trip.room
    if not has_started and trip.may_rest and not trip.is_marked and (again_at is None or again_at > trip.now):
        if mine is None:
            # Its row may be there, and locked: it comes again.
            state.processes[trip.process] = Process(worker=trip.worker, queues=[*trip.queues], idle_at=trip.now)
            return trip.now + 2 * MILLISECOND
        mine.idle_at, mine.queues = trip.now, [*trip.queues]
    elif mine is not None and trip.is_marked and (has_started or not trip.may_rest):
        mine.idle_at = None
    return again_at


def _show(state: State, key: int, now: int) -> set[str]:
    """Have the workers of the lanes that are parked on a fair key look at it; return their queues."""
    queues = {lane.queue for lane in state.parked(key)}
    for queue in queues:
        first = state.front(key, queue)[0]
        first.kept_until = now if first.kept_until is None else first.kept_until
    return queues


def _free(state: State, key: Room, chosen: Chosen) -> set[str]:
    """Make as many lanes parked on a key ready as it has room for, of each queue."""
    most, freed = min(key.room, 20), []
    for queue in sorted({lane.queue for lane in state.parked(key.id)}):
        freed += [lane for lane in state.front(key.id, queue) if lane.id not in chosen.moves][:most]
    for lane in freed:
        _make_ready(lane)
        lane.kept_until = None
    return {lane.queue for lane in freed}


# The claim of what was dispatched.


def claim(state: State, given: Claim) -> tuple[int | None, str | None]:
    """Start a call that was dispatched; return when, or why not."""
    call, now, tuning = given.call, given.now, given.tuning
    slots = [slot for slot in state.slots if slot.call == call.id]
    costs = {slot.key: slot.cost for slot in slots if slot.key is not None}
    keys = [room(state, state.keys[key], given.worker, now, tuning) for key in costs if key in state.keys]
    start_at, refused = now, None
    for key in keys:
        if key.closed_until is not None or key.limits.concurrency == 0:
            refused = "closed"
        if key.limits.throttle_limit is not None:
            free_at = None if key.last_at is None else key.last_at + key.limits.spacing(key.last_cost or 0)
            start_at = latest(start_at, key.limits.paced(free_at, costs[key.id], now, tuning.lead))
    if call.is_revoked:
        refused = "revoked"
    elif call.expires_at is not None and call.expires_at <= now:
        refused = "expired"
    elif refused is None and start_at - now > given.ahead:
        refused = "early"
    if refused is not None:
        return None, refused
    call.state, call.started_at, call.returns = "active", start_at, 0
    call.attempt += 1
    state.slots = [slot for slot in state.slots if slot.call != call.id]
    state.slots += [slot._replace(worker=given.worker, started_at=start_at) for slot in slots]
    for key in keys:
        key.unstarted -= costs[key.id]
        observe(key, costs[key.id], now, tuning)
        key.used = key.last_cost = costs[key.id]
        key.last_at = latest(key.last_at, start_at + tuning.slack)
    count_starts(state, keys)
    return start_at, None
