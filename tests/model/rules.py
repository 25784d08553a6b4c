"""The rules of the dispatcher, in about two hundred lines, from its design and not from its code: a second opinion.

Pure: neither a database nor a clock; `now` is a parameter. A window is counted in parts, which round: `is_lax` asks for
what the engine may admit by the exact rule, and without it for what it must, with 2 % of a period wasted.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

MARGIN, HORIZON, LEAD = timedelta(milliseconds=50), timedelta(milliseconds=200), timedelta(milliseconds=10)
BEYOND = timedelta(milliseconds=100)
DISPATCH_LEASE, RUN_LEASE, FETCH_LEASE = timedelta(seconds=40), timedelta(seconds=20), timedelta(seconds=25)
RAMP, RAMP_STEPS = timedelta(seconds=4), 8
SHORTEST_STOP = timedelta(seconds=1)
WASTE = 0.02
POISON_AFTER = 3
YEAR = timedelta(days=366)
IN_LINE = timedelta(seconds=15)
NEVER, ALWAYS = datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)
QUEUES = {"one": "broker", "two": "broker", "direct": "direct", "other": "direct", "http": "http"}
"""How each queue delivers its calls: published by the broker, or taken by a worker."""
AHEAD = {"broker": HORIZON, "direct": HORIZON + LEAD, "http": timedelta(0)}
"""How far ahead of its start a call may be taken; a worker that fetches starts it as it gets it."""
TERMINAL = ("completed", "cancelled", "discarded")


class Limits(NamedTuple):
    concurrency: int | None = None
    rate: tuple[int, timedelta] | None = None
    throttle: tuple[int, timedelta] | None = None
    per_worker: int | None = None


class Lane(NamedTuple):
    queue: str
    priority: int
    on_limit: str
    keys: tuple[str, ...]

    @property
    def delivery(self) -> str:
        return QUEUES[self.queue]


class Retry(NamedTuple):
    attempts: int
    first: timedelta
    factor: int
    longest: timedelta


class Start(NamedTuple):
    at: datetime
    cost: int
    period: timedelta
    is_sure: bool = True

    def counts(self, now: datetime, window: timedelta, *, is_lax: bool) -> bool:
        known = not is_lax or (self.is_sure and self.period == window)
        return known and now < self.at + window + MARGIN + (0 if is_lax else WASTE) * max(window, self.period)


UNLIMITED = Limits()


@dataclass
class Key:
    own: Limits
    other: Limits = UNLIMITED
    other_until: datetime = ALWAYS
    is_paused: bool = False
    blocked_until: datetime = ALWAYS
    last_start_at: datetime = ALWAYS
    last_cost: int = 0
    starts: list[Start] = field(default_factory=list)

    def limits(self, now: datetime) -> Limits:
        return self.other if now < self.other_until else self.own

    def is_closed(self, now: datetime) -> bool:
        return self.is_paused or now < self.blocked_until or self.limits(now).concurrency == 0

    def next_start_at(self, now: datetime) -> datetime:
        """Return the earliest next start under the throttle in force."""
        if self.last_start_at == ALWAYS or (throttle := self.limits(now).throttle) is None:
            return ALWAYS
        return self.last_start_at + self.last_cost * throttle[1] / throttle[0]

    def windows(self, now: datetime) -> set[timedelta]:
        return {limits.rate[1] for limits in (self.own, *([self.other] * (now < self.other_until))) if limits.rate}

    def put(self, now: datetime, *, own: Limits, other: Limits = UNLIMITED, until: datetime = ALWAYS) -> None:
        before = self.windows(now)
        self.own, self.other, self.other_until = own, other, until
        if before != self.windows(now):
            # Starts under other windows may be known, or not.
            self.starts = [start._replace(is_sure=False) for start in self.starts]


@dataclass
class Call:
    position: int
    lane: Lane
    costs: Mapping[str, int]
    retry: Retry
    state: str
    scheduled_at: datetime | None = None
    expires_at: datetime = NEVER
    attempt: int = 0
    crashes: int = 0
    returns: int = 0
    held: Mapping[str, int] = field(default_factory=dict)
    worker: str | None = None
    """The one that runs it, or has its message."""
    is_confirmed: bool = False
    """Whether its worker has shown since the fetch that it has the call."""
    admitted_at: datetime = ALWAYS
    sent_at: datetime = ALWAYS
    started_at: datetime | None = None
    lease_until: datetime = NEVER

    def move(self, state: str, scheduled_at: datetime | None = None) -> None:
        self.state, self.scheduled_at = state, scheduled_at or self.scheduled_at
        self.held, self.worker = {}, None


@dataclass
class Rules:
    keys: dict[str, Key]
    calls: dict[UUID, Call] = field(default_factory=dict)
    served: dict[Lane, tuple[datetime, int]] = field(default_factory=dict)  # when last, and the lane's number
    repeated: list[UUID] = field(default_factory=list)
    seen: dict[str, datetime] = field(default_factory=dict)
    """When each worker's last heartbeat came."""
    lost: dict[str, datetime] = field(default_factory=dict)
    """Since when each silent worker counts as lost."""
    locked: set[UUID] = field(default_factory=set)
    """Calls whose rows somebody has locked: what time brings passes them by, and they are lost later."""

    def in_state(self, *states: str) -> list[UUID]:
        return sorted(
            (call_id for call_id, call in self.calls.items() if call.state in states),
            key=lambda call_id: self.calls[call_id].position,
        )

    def costs(self, call: Call) -> dict[str, int]:
        queue = f"queue:{call.lane.queue}"
        return {**call.costs, **({queue: 1} if queue in self.keys else {})}

    def has_room(
        self,
        name: str,
        cost: int,
        now: datetime,
        *,
        is_lax: bool,
        worker: str | None = None,
        horizon: timedelta = HORIZON,
    ) -> bool:
        """Say whether a key has room for a cost; for a worker, if one is given, whether it may hold so much more.

        horizon: how far ahead a start may lie.
        """
        key, limits = self.keys[name], self.keys[name].limits(now)
        held = [(call.held[name], call.state) for call in self.calls.values() if name in call.held]
        unstarted = self.unstarted(name)
        has_room = not key.is_closed(now)
        if key.blocked_until <= now < key.blocked_until + RAMP:
            steps = (now - key.blocked_until) * RAMP_STEPS // RAMP
            has_room &= sum(cost for cost, _ in held) + cost <= 2**steps
        if limits.concurrency is not None:
            has_room &= sum(cost for cost, _ in held) + cost <= limits.concurrency
        if limits.per_worker is not None and worker is not None:
            mine = sum(call.held[name] for call in self.calls.values() if name in call.held and call.worker == worker)
            has_room &= mine + cost <= limits.per_worker
        if limits.rate is not None:
            most, window = limits.rate
            counted = sum(start.cost for start in key.starts if start.counts(now, window, is_lax=is_lax))
            has_room &= counted + unstarted + cost <= most
        if limits.throttle is not None:
            most, period = limits.throttle
            has_room &= max(now, key.next_start_at(now)) + unstarted * period / most <= now + horizon
        return has_room

    def fits(self, call: Call, now: datetime, *, is_lax: bool, worker: str | None = None) -> bool:
        costs = self.costs(call).items()
        ahead = AHEAD[call.lane.delivery]
        return all(self.has_room(*each, now, is_lax=is_lax, worker=worker, horizon=ahead) for each in costs)

    def is_oversized(self, call_id: UUID, now: datetime) -> bool:
        """Say whether no release and no time lets this call start, as long as the limits in force are what they are."""

        def never(cost: int, limits: Limits) -> bool:
            most = [limits.concurrency or cost, limits.per_worker or cost, *(rate[0] for rate in [limits.rate] if rate)]
            return cost > min(most) or bool(limits.throttle and cost * limits.throttle[1] / limits.throttle[0] > YEAR)

        costs = self.costs(self.calls[call_id])
        return any(never(cost, self.keys[name].limits(now)) for name, cost in costs.items())

    def waiting(self, now: datetime) -> dict[Lane, list[UUID]]:
        lanes: dict[Lane, list[UUID]] = {}
        for call_id in self.in_state("available"):
            if now < self.calls[call_id].expires_at:
                lanes.setdefault(self.calls[call_id].lane, []).append(call_id)
        return lanes

    def turns(self, now: datetime, *, is_lax: bool) -> dict[UUID, str]:
        """Say what a pass over everything makes of those who wait: by priority, then lane by lane, one call each."""
        plan: dict[UUID, str] = {}
        trial = Rules(self.keys, {call_id: replace(call) for call_id, call in self.calls.items()}, self.served)
        lanes = {lane: calls for lane, calls in trial.waiting(now).items() if lane.delivery == "broker"}
        for priority in sorted({lane.priority for lane in lanes}, reverse=True):
            turn = sorted((lane for lane in lanes if lane.priority == priority), key=self.served_at)
            while turn := [lane for lane in turn if lanes[lane]]:
                for lane in list(turn):
                    call_id = lanes[lane].pop(0)
                    if lane.on_limit != "drop" and trial.is_oversized(call_id, now):
                        continue
                    if trial.fits(trial.calls[call_id], now, is_lax=is_lax):
                        trial.admit(call_id, now)
                        plan[call_id] = "dispatched"
                    elif lane.on_limit == "wait":
                        turn.remove(lane)
                    else:
                        plan[call_id] = "scheduled" if lane.on_limit == "reschedule" else "discarded"
        return plan

    def served_at(self, lane: Lane) -> tuple[datetime, int]:
        """Return when a call of a lane went last, and the lane's number; it has none while it could not be made."""
        return self.served.get(lane, (ALWAYS, 0))

    def admit(self, call_id: UUID, now: datetime, *, worker: str | None = None) -> None:
        call = self.calls[call_id]
        call.worker = worker
        call.state, call.held, call.lease_until = "dispatched", self.costs(call), now + DISPATCH_LEASE
        call.admitted_at, call.sent_at, call.is_confirmed = now, now, False

    def may_start(self, call_id: UUID, now: datetime) -> bool:
        """Say whether the worker that has a call's message may start it; if not, it waits again, or has expired."""
        call = self.calls[call_id]
        if call.expires_at <= now:
            call.move("discarded")
        elif (
            any(self.keys[name].is_closed(now) for name in call.held)
            or self.start_of(call, now) > now + LEAD + HORIZON + BEYOND
        ):
            call.move("available")
        return call.state == "dispatched"

    def start_of(self, call: Call, now: datetime, reserved: Mapping[str, int] = MappingProxyType({})) -> datetime:
        lead = timedelta(0) if call.lane.delivery == "http" else LEAD
        starts = []
        for name in call.held:
            key = self.keys[name]
            if (throttle := key.limits(now).throttle) is not None:
                wait = reserved.get(name, 0) * throttle[1] / throttle[0]
                starts.append(max(now, key.next_start_at(now)) + wait)
        return max([now + lead, *starts]) if starts else now

    def unstarted(self, name: str) -> int:
        """Return the cost of what was dispatched under a key and has not started: a take starts nothing before it."""
        calls = [call for call in self.calls.values() if name in call.held and call.state == "dispatched"]
        return sum(call.held[name] for call in calls)

    def start(self, call_id: UUID, now: datetime, *, worker: str, reserved: dict[str, int] | None = None) -> None:
        """Start a call. reserved: of a take, what was dispatched before it; its first start of a key follows that."""
        call = self.calls[call_id]
        reserved = {} if reserved is None else reserved
        start = self.start_of(call, now, reserved)
        for name in call.held:
            reserved.pop(name, None)
        for name, cost in call.held.items():
            key = self.keys[name]
            # An override without a throttle gives starts that count when the key's own holds again.
            if (key.own.throttle or key.other.throttle) and key.last_start_at <= start:
                key.last_start_at, key.last_cost = start, cost
        self.count(call, start, now)
        call.worker, call.returns = worker, 0
        call.state, call.attempt, call.started_at = "active", call.attempt + 1, start
        call.lease_until = now + FETCH_LEASE if call.lane.delivery == "http" else start + RUN_LEASE

    def count(self, call: Call, start: datetime, now: datetime) -> None:
        for name, cost in call.held.items():
            if rate := self.keys[name].limits(now).rate:
                self.keys[name].starts.append(Start(start, cost, rate[1]))

    def prove(self, call_id: UUID, now: datetime) -> None:
        """Count the start of a call now whose claim a crash has lost: its end proves it."""
        call = self.calls[call_id]
        self.count(call, now, now)
        for name, cost in call.held.items():
            key = self.keys[name]
            if throttle := key.limits(now).throttle:
                if key.next_start_at(now) < now + cost * throttle[1] / throttle[0]:
                    key.last_start_at, key.last_cost = now, cost
            elif key.other.throttle and key.last_start_at <= now:
                key.last_start_at, key.last_cost = now, cost
        call.attempt += 1
        call.returns = 0

    def beat(self, call_id: UUID, now: datetime, *, worker: str) -> None:
        call = self.calls[call_id]
        call.worker, call.is_confirmed = worker, True
        if call.lane.delivery == "http":
            call.lease_until = now + FETCH_LEASE
        else:
            call.lease_until = now + RUN_LEASE
            self.seen[worker] = now
            self.lost.pop(worker, None)

    def complete(self, call_id: UUID) -> None:
        self.calls[call_id].crashes = 0
        self.calls[call_id].move("completed")

    def stop(self, call_id: UUID, now: datetime, wait: timedelta, only: str | None) -> None:
        """Let a call wait whose provider asks for it, and all its keys, or the one that is named."""
        call, wait = self.calls[call_id], max(wait, SHORTEST_STOP)
        stopped = [name for name in call.held if only in (None, name)]
        self.put_back(call, None if stopped else now + wait, has_run=True)
        for name in {*stopped, *([only] if only else [])}:
            self.keys[name].blocked_until = max(self.keys[name].blocked_until, now + wait)

    def fail(
        self,
        call_id: UUID,
        now: datetime,
        *,
        may_retry: bool = True,
        is_crash: bool = False,
        wait: timedelta | None = None,
    ) -> None:
        call = self.calls[call_id]
        call.crashes = call.crashes + 1 if is_crash else 0
        if wait is None:
            wait = min(call.retry.first * call.retry.factor ** (call.attempt - 1), call.retry.longest)
        if may_retry and call.attempt < call.retry.attempts and call.crashes < POISON_AFTER:
            call.move("retryable", now + wait)
        else:
            call.move("discarded")

    def wake(self, now: datetime, *queues: str) -> None:
        """Let the calls wait in their lanes whose time has come."""
        for call_id in self.in_state("scheduled", "retryable"):
            call = self.calls[call_id]
            if call.scheduled_at <= now and call.lane.queue in queues and call_id not in self.locked:
                call.move("available")

    def tick(self, now: datetime) -> None:
        self.reclaim(now)
        self.wake(now, *QUEUES)
        for call_id in self.in_state("scheduled", "retryable", "available"):
            if self.calls[call_id].expires_at <= now and call_id not in self.locked:
                self.calls[call_id].move("discarded")

    def reclaim(self, now: datetime) -> None:
        """End the attempts of fetched calls whose leases are over; the answer of the fetch may have been lost."""
        for call_id in self.in_state("active"):
            call = self.calls[call_id]
            if call.lane.delivery != "http" or call.lease_until > now or call_id in self.locked:
                continue
            if call.is_confirmed or call.crashes + 1 >= POISON_AFTER:
                self.fail(call_id, now, wait=timedelta(0))
            else:
                self.put_back(call)
                call.crashes += 1

    def recover(self, now: datetime) -> list[UUID]:
        silent = [name for name, at in self.seen.items() if at < now - RUN_LEASE and name not in self.lost]
        self.lost |= dict.fromkeys(silent, now)
        flying = {call_id: self.calls[call_id] for call_id in self.in_state("dispatched", "active")}
        seen = [(call.lane.queue, call.sent_at) for call in flying.values() if call.worker and call.lease_until >= now]

        def is_lost(call: Call) -> bool:
            """One whose message no worker has taken may wait, as long as none from behind it was fetched."""
            if call.lane.delivery == "http":
                return False
            front = max((at for queue, at in seen if queue == call.lane.queue), default=NEVER)
            is_known = call.state == "active" or call.worker is not None
            lost_at = self.lost.get(call.worker or "")
            is_silent = lost_at is not None and (call.state == "dispatched" or lost_at >= call.started_at)
            return is_silent or (call.lease_until < now and (is_known or call.sent_at < front - IN_LINE))

        lost = [call_id for call_id, call in flying.items() if is_lost(call) and call_id not in self.locked]
        for call_id in lost:
            self.lose(call_id, now)
        self.reclaim(now)
        self.repeated = [call_id for call_id in self.in_state("dispatched") if self.calls[call_id].lease_until < now]
        for call in map(self.calls.__getitem__, self.repeated):
            call.sent_at, call.lease_until = now, now + max(DISPATCH_LEASE, now - call.admitted_at)
        return lost

    def lose(self, call_id: UUID, now: datetime) -> None:
        call = self.calls[call_id]
        if call.state == "active" and call.started_at <= now:
            self.fail(call_id, now, is_crash=True)
        else:
            wait = DISPATCH_LEASE * 2 ** min(call.returns - 2, 20) if call.returns >= 2 else None
            self.put_back(call, None if wait is None else now + min(wait, 12 * DISPATCH_LEASE))
            call.returns += 1

    def put_back(self, call: Call, scheduled_at: datetime | None = None, *, has_run: bool = False) -> None:
        """Let a call wait again at the front of its lane; no attempt is spent."""
        if call.state == "active":
            call.attempt -= 1
            call.crashes = 0 if has_run else call.crashes
        call.move("scheduled" if scheduled_at else "available", scheduled_at)
