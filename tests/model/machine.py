"""What happens to calls and keys, in any order: each step is done by the engine and by the rules, and compared."""

from datetime import datetime, timedelta
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from dispatcher import engine, request
from dispatcher.models import CallQueue, RateLimitKey
from tests.clock import Clock
from tests.deliveries import DRIVES
from tests.drive import Run
from tests.model.faults import Faults
from tests.model.moments import Moments
from tests.model.operators import Operators
from tests.model.pair import STEP, Pair, Worker
from tests.model.rules import (
    ALWAYS,
    HORIZON,
    MARGIN,
    NEVER,
    QUEUES,
    RAMP,
    RAMP_STEPS,
    TERMINAL,
    Call,
    Key,
    Lane,
    Limits,
    Retry,
)
from tests.model.strategies import NAMES, PERIODS, drafts, limits_of, numbers, seconds, waits
from tests.model.workers import Workers
from tests.races.audit import audit
from tests.races.lockstep import Actor

WORKERS = [
    ("ann", ["direct", "other"]),
    ("ben", ["direct", "other"]),
    ("cid", ["direct"]),
    ("eve", ["http"]),
    ("fay", ["http"]),
]
"""Those that take calls, and of which queues."""


class Machine(Workers, Operators, Moments, Faults, RuleBasedStateMachine):
    """The engine and the rules go the same way."""

    clock: ClassVar[Clock]
    actor: ClassVar[Actor]

    def __init__(self) -> None:
        super().__init__()
        # Drives know what their workers have done, which is another story each time.
        self.drives = {queue: DRIVES[delivery](self.clock, queue) for queue, delivery in QUEUES.items()}
        self.workers = [
            Worker(name, DRIVES[QUEUES[queues[0]]](self.clock, queues[0]), queues) for name, queues in WORKERS
        ]
        self.pair = Pair(self.clock, self.drives)
        self.rules = self.pair.rules
        self.sent = 0
        self.runs = dict[object, Run]()
        """The latest run of each call."""
        self.late: list[Run] = []
        """Runs whose tickets were replaced."""

    @initialize(
        limits=st.fixed_dictionaries({name: limits_of(name) for name in NAMES}),
        dearest=st.sampled_from([1, 1, 1, 1, 2, 3]),
        first=st.lists(drafts, min_size=5, max_size=9),
    )
    def declare(self, limits: dict[str, Limits], dearest: int, first: list[dict[str, Any]]) -> None:
        self.limits, self.dearest = limits, dearest
        for name, own in limits.items():
            RateLimitKey.objects.declare(name, **own._asdict())
            self.rules.keys[name] = Key(own)
        self.send(first, "together")

    def compare(self, **seen: Any) -> None:
        """Hold the engine to the rules; what has lost its ticket may come back late."""
        for run in seen.get("taken", ()):
            self.runs[run.call] = run
        self.pair.compare(**seen)
        gone = [call_id for call_id, run in self.runs.items() if self.pair.tickets.get(call_id) != run.ticket]
        self.late += [self.runs.pop(call_id) for call_id in gone]

    # Senders

    @rule(drafts=st.lists(drafts, min_size=1, max_size=4), how=st.sampled_from(["alone", "together", "dies"]))
    def sends(self, drafts: list[dict[str, Any]], how: str) -> None:
        self.send(drafts, how)

    def send(self, drafts: list[dict[str, Any]], how: str) -> None:
        now = self.pair.begin()
        drafts = drafts[:1] if how == "alone" else drafts
        calls = [self.call(now, **draft) for draft in drafts]
        match how:
            case "alone":
                rows = [CallQueue.objects.send("noop", **self.fields(calls[0]))]
            case "together":
                rows = CallQueue.objects.send_many([request.Call(task="noop", **self.fields(call)) for call in calls])
            case _:
                rows = [self.pair.drives[call.lane.queue].send_and_die(**self.fields(call)) for call in calls]
                self.pair.lag = max(self.pair.lag, 1)
        self.rules.calls.update(zip((row.id for row in rows), calls, strict=True))
        self.compare(is_lone=len(calls) == 1)

    def call(
        self,
        now: datetime,
        *,
        lane: Lane,
        cost: int,
        retry: Retry,
        scheduled_in: timedelta | None = None,
        expires_in: timedelta | None = None,
    ) -> Call:
        self.sent += 1
        scheduled_at = scheduled_in and now + scheduled_in
        return Call(
            position=self.sent,
            lane=lane,
            costs={name: self.affordable(name, cost) for name in lane.keys},
            retry=retry,
            state="scheduled" if scheduled_in else "available",
            scheduled_at=scheduled_at,
            expires_at=(scheduled_at or now) + expires_in if expires_in else NEVER,
        )

    def affordable(self, name: str, cost: int) -> int:
        own, first = self.rules.keys[name].own, self.limits[name]
        most = [
            self.dearest,
            *(limits.concurrency or 9 for limits in (own, first)),
            *(limits.per_worker or 9 for limits in (own, first)),
            *(limits.rate[0] for limits in (own, first) if limits.rate),
        ]
        return min(cost, *most)

    @staticmethod
    def fields(call: Call) -> dict[str, Any]:
        return {
            "keys": call.costs,
            "queue": call.lane.queue,
            "priority": call.lane.priority,
            "on_limit": call.lane.on_limit,
            "scheduled_at": call.scheduled_at,
            "expires_at": None if call.expires_at == NEVER else call.expires_at,
            "retry": {
                "max_attempts": call.retry.attempts,
                "initial_interval": call.retry.first,
                "backoff_coefficient": call.retry.factor,
                "max_interval": call.retry.longest,
                "jitter": False,
                "non_retryable_errors": ["KeyError"],
            },
        }

    # Time

    @rule()
    def tick(self) -> None:
        now = self.pair.begin()
        woken = engine.sweep()
        self.compare()
        assert self.pair.lag or not woken, "the sweep found what should not be"
        self.pair.agrees = False
        self.rules.tick(now)
        engine.tick(now=now)
        self.compare(is_tick=True)

    @rule()
    def recover(self) -> None:
        now = self.pair.begin()
        lost = self.rules.recover(now)
        assert engine.recover(now=now) == len(lost)
        self.compare()

    @rule(wait=waits)
    def forward(self, wait: timedelta) -> None:
        self.pair.now += wait

    @rule(number=numbers, offset=st.sampled_from([-1, 0, 1, 25_000]))
    def forward_to_a_deadline(self, number: int, offset: int) -> None:
        """Let the next step be at the moment when something changes, or next to it."""
        before = timedelta(microseconds=offset) - STEP
        later = [
            at + before
            for at in self.deadlines()
            if at != NEVER and at > ALWAYS + seconds(90) and at + before >= self.pair.now
        ]
        if later:
            # The next ones are the likeliest to matter.
            self.pair.now = later[number // 3 % len(later)]

    def deadlines(self) -> list[datetime]:
        found = set()
        for call in self.rules.calls.values():
            if call.state not in TERMINAL:
                found |= {call.expires_at, call.lease_until, call.scheduled_at or NEVER}
        for name, key in self.rules.keys.items():
            next_start_at = key.next_start_at(self.pair.now)
            found |= {key.blocked_until + RAMP / RAMP_STEPS * step for step in range(3)}
            found |= {key.other_until, next_start_at}
            found |= {next_start_at - HORIZON} if next_start_at != ALWAYS else set()
            found |= {start.at + seconds(PERIODS[name]) + late for start in key.starts for late in (seconds(0), MARGIN)}
        return sorted(found)

    # The end

    def teardown(self) -> None:
        """Let everything run to its end, and check the whole database."""
        if self.pair.touched:
            self.let_go()
        if self.pair.agrees:
            self.lift_limits()
            self.run_all()
            # Of a call that waited again after its run the rows do not show how long it held its room: each step has.
            audit(limits_changed=True, now=self.pair.now)

    def lift_limits(self) -> None:
        for name, key in self.rules.keys.items():
            if key.other != Limits():
                self.put_limits(name, key.own, seconds(0), "end")
            if key.own != self.limits[name]:
                self.put_limits(name, self.limits[name], seconds(0), "limit")
            if key.is_paused or key.blocked_until != ALWAYS:
                self.close_or_open(name, seconds(0), "resume")

    def run_all(self) -> None:
        for _ in range(200):
            if not self.rules.in_state("scheduled", "available", "dispatched", "active", "retryable"):
                break
            self.pair.now += seconds(61)
            self.tick()
            self.take_all()
            while self.rules.in_state("dispatched"):
                self.claim(0, "ann")
            while self.runs:
                self.end(0, "completes", seconds(1), None)
