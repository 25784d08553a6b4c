"""What happens to calls and keys, in any order: each step is done by the engine and by the rules, and compared."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from django.db import transaction
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from dispatcher import api, engine, request
from dispatcher import ending as endings
from dispatcher.engine import attempt, fed, feed
from dispatcher.errors import RateLimited, WorkerLost
from dispatcher.lifecycle import claim, finish, heartbeat, run, send
from dispatcher.models import CallQueue, RateLimitKey
from tests.builders import HERE
from tests.model.pair import STEP, Pair
from tests.model.rules import (
    ALWAYS,
    DIRECT,
    HORIZON,
    MARGIN,
    NEVER,
    RUN_LEASE,
    TERMINAL,
    Call,
    Key,
    Lane,
    Limits,
    Retry,
)
from tests.model.strategies import NAMES, PERIODS, drafts, limits_of, names, numbers, seconds, waits
from tests.races.audit import audit

WORKER = replace(HERE, id=uuid4(), queues=["one", "two", DIRECT])
TAKERS = [feed.Taker(worker=worker, queues=[DIRECT], tasks=["noop"]) for worker in (WORKER.id, uuid4(), uuid4())]
takers = st.sampled_from(TAKERS)


class Machine(RuleBasedStateMachine):
    """The engine and the rules go the same way."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair()
        self.rules = self.pair.rules
        self.sent = 0
        self.starts: list[feed.Start] = []

    @initialize(
        limits=st.fixed_dictionaries({name: limits_of(name) for name in NAMES}),
        dearest=st.sampled_from([1, 1, 1, 2, 3]),
        first=st.lists(drafts, min_size=4, max_size=9),
    )
    def declare(self, limits: dict[str, Limits], dearest: int, first: list[dict[str, Any]]) -> None:
        self.limits, self.dearest = limits, dearest
        for name, own in limits.items():
            RateLimitKey.objects.declare(name, **own._asdict())
            self.rules.keys[name] = Key(own)
        self.send(first, "together")

    # Callers

    @rule(
        drafts=st.lists(drafts, min_size=1, max_size=4),
        how=st.sampled_from(["alone", "alone", "together", "dies", "rolled back"]),
    )
    def sends(self, drafts: list[dict[str, Any]], how: str) -> None:
        self.send(drafts, how)

    def send(self, drafts: list[dict[str, Any]], how: str) -> None:
        now = self.pair.begin()
        drafts = drafts[:1] if how == "alone" else drafts
        calls = [self.call(now, **draft) for draft in drafts]
        rows: Sequence[CallQueue] = ()
        match how:
            case "alone":
                rows = [CallQueue.objects.send("noop", **self.fields(calls[0]))]
            case "together":
                rows = CallQueue.objects.send_many([request.Call(task="noop", **self.fields(call)) for call in calls])
            case "rolled back":
                with transaction.atomic():
                    CallQueue.objects.send_many([request.Call(task="noop", **self.fields(call)) for call in calls])
                    transaction.set_rollback(True)
            case "dies":
                asks = [request.Call(task="noop", **self.fields(call)) for call in calls]
                rows = send.write([send.draft(ask, task="noop", queue=ask.queue) for ask in asks])
                self.pair.is_neglected = True
        self.rules.calls.update(zip((row.id for row in rows), calls, strict=bool(rows)))
        self.pair.compare(is_lone=len(calls) == 1)

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
        self.pair.compare()
        assert self.pair.is_neglected or not woken, "the sweep found what should not be"
        self.pair.is_neglected = False
        self.rules.due(now)
        engine.tick(now=now)
        self.pair.compare(is_full=True)

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
            self.pair.now = later[number % len(later)]

    def deadlines(self) -> list[datetime]:
        found = set()
        for call in self.rules.calls.values():
            if call.state not in TERMINAL:
                found |= {call.expires_at, call.lease_until, call.scheduled_at or NEVER}
        for name, key in self.rules.keys.items():
            next_start_at = key.next_start_at(self.pair.now)
            found |= {key.blocked_until, key.other_until, next_start_at}
            found |= {next_start_at - HORIZON} if next_start_at != ALWAYS else set()
            found |= {start.at + seconds(PERIODS[name]) + MARGIN for start in key.starts}
        return sorted(found)

    # Workers

    def pick(self, number: int, *states: str) -> UUID:
        found = self.rules.in_state(*states)
        return found[number % len(found)]

    def any_in(*states: str) -> Callable[[Any], bool]:
        return precondition(lambda self: bool(self.rules.in_state(*states)))

    @any_in("dispatched")
    @rule(number=numbers)
    def claim(self, number: int) -> None:
        now, call_id = self.pair.begin(), self.pick(number, "dispatched")
        verdict = self.rules.claim(call_id, now)
        ticket = self.pair.tickets[call_id]
        if verdict == "claimed":
            claimed = claim.claim(call_id, ticket)
            assert isinstance(claimed, claim.Claimed), f"{claimed}, though it should have been granted"
            call = self.rules.calls[call_id]
            assert (claimed.attempt, claimed.start_at) == (call.attempt, call.started_at)
        else:
            refused = engine.execute(call_id, ticket, must_not_run)
            assert refused is claim.Refused[verdict], f"{refused}, and not {verdict}"
        self.pair.compare()

    @any_in("active")
    @rule(
        number=numbers,
        how=st.sampled_from(["completes", "completes", "fails", "fails for good", "is stopped", "dies"]),
        wait=waits,
        name=names,
    )
    def end(self, number: int, how: str, wait: timedelta, name: str) -> None:
        self.begin_end(self.pick(number, "active"), how, wait, name if wait > seconds(1) else None)

    @any_in("dispatched")
    @rule(number=numbers, how=st.sampled_from(["completes", "fails"]))
    def end_after_a_crash_lost_the_claim(self, number: int, how: str) -> None:
        call_id = self.pick(number, "dispatched")
        keys = [self.rules.keys[name] for name in self.rules.calls[call_id].held]
        # Its room under a throttle is the tick's.
        if not any(key.limits(self.pair.now).throttle for key in keys):
            self.begin_end(call_id, how, seconds(0), None)

    def begin_end(self, call_id: UUID, how: str, wait: timedelta, name: str | None) -> None:
        now, call, ticket = self.pair.begin(), self.rules.calls[call_id], self.pair.tickets[call_id]
        if call.state == "dispatched":
            self.rules.prove(call_id, now)
        error = KeyError("for good") if how == "fails for good" else ValueError("this time")
        policy = self.fields(call)["retry"]
        attempts = call.attempt
        match how:
            case "completes" | "dies":
                call.crashes = 0
                call.move("completed")
                released = finish.complete(call_id, ticket, result=None)
            case "fails" | "fails for good":
                self.rules.fail(call_id, now, may_retry=how == "fails")
                released = finish.fail(call_id, ticket, error=error, attempt=attempts, policy=policy)
            case _:
                self.rules.stop(call_id, now, wait, name)
                stopped = run.Stopped(error=RateLimited(retry_after=wait), wait=wait, key=name)
                released = attempt.stop(call_id, ticket, stopped)
        assert released is not None, "its ticket should have been good"
        if how == "dies":
            self.pair.is_neglected = True
        else:
            engine.hand_over(released.keys, released.lane_id)
        self.pair.compare()

    @precondition(lambda self: self.pair.replaced or self.rules.in_state("active"))
    @rule(number=numbers, how=st.sampled_from(["claims", "completes", "fails", "beats", "is lost"]))
    def come_late(self, number: int, how: str) -> None:
        """Deliver a message twice, or let a worker come back that was given up for lost."""
        self.pair.begin()
        active = (
            [(call_id, self.pair.tickets[call_id]) for call_id in self.rules.in_state("active")]
            if how == "claims"
            else []
        )
        if not (late := [*self.pair.replaced, *active]):
            return
        call_id, ticket = late[number % len(late)]
        match how:
            case "claims":
                assert engine.execute(call_id, ticket, must_not_run) is claim.Refused.STALE
            case "completes":
                assert finish.complete(call_id, ticket, result="late") is None
            case "fails":
                assert not engine.fail(call_id, ticket, ValueError("late"))
            case "beats":
                assert heartbeat.record(somebody(), [(call_id, ticket)]).slots == 0
            case _:
                assert not engine.lose(call_id, ticket, WorkerLost("late"), is_crash=True)
        self.pair.compare()

    @any_in("dispatched", "active")
    @rule(number=numbers)
    def beat(self, number: int) -> None:
        now, call_id = self.pair.begin(), self.pick(number, "dispatched", "active")
        self.rules.calls[call_id].lease_until, self.rules.calls[call_id].is_fetched = now + RUN_LEASE, True
        # A worker that holds a call is the only one that renews it.
        worker = replace(WORKER, id=self.rules.calls[call_id].worker or WORKER.id)
        assert heartbeat.record(worker, [(call_id, self.pair.tickets[call_id])]).slots == max(
            len(self.rules.calls[call_id].held), 1
        )
        self.pair.compare()

    @any_in("dispatched", "active")
    @rule(number=numbers)
    def lose(self, number: int) -> None:
        now, call_id = self.pair.begin(), self.pick(number, "dispatched", "active")
        self.rules.lose(call_id, now)
        assert engine.lose(call_id, self.pair.tickets[call_id], WorkerLost("killed"), is_crash=True)
        self.pair.compare()

    @any_in("dispatched", "active")
    @rule()
    def recover(self) -> None:
        now = self.pair.begin()
        lost = self.rules.recover(now)
        assert engine.recover(now=now) == len(lost)
        self.pair.compare()

    # Workers of the direct queue

    @rule(
        taker=takers,
        room=st.sampled_from([1, 2, 3, 9]),
        ends=st.integers(0, 3),
        how=st.sampled_from(["completes", "completes", "fails"]),
        is_general=st.booleans(),
    )
    def take(self, taker: feed.Taker, room: int, ends: int, how: str, *, is_general: bool) -> None:
        """Let a worker record what ended, and take what may start."""
        now, ended = self.pair.begin(), []
        for start in self.held(taker)[:ends]:
            call = self.rules.calls[start.call.id]
            if how == "fails":
                ending = endings.failed(ValueError("this time"), attempt=call.attempt, policy=start.claimed.retry)
                self.rules.fail(start.call.id, now)
            else:
                ending = endings.completed(None)
                call.crashes = 0
                call.move("completed")
            ids = {"call_id": start.call.id, "ticket": start.call.ticket, "claim_id": start.claimed.claim_id}
            ended.append(finish.Ended(**ids, ending=ending))
        made = feed.step(taker, ended, room=room, is_general=is_general)
        assert sorted(made.recorded) == sorted(end.call_id for end in ended)
        assert len(made.starts) <= room
        self.started(made)
        self.pair.compare(taken=[start.call.id for start in made.starts], worker=taker.worker)

    @rule()
    def take_all(self) -> None:
        """Let the workers take calls until a step of each finds no more, and none is left that may start."""
        self.take_until_none_is_left()

    def take_until_none_is_left(self) -> None:
        keys = [*RateLimitKey.objects.values_list("id", flat=True)]
        fruitless = 0
        for number in range(150):
            taker = TAKERS[number % len(TAKERS)]
            self.pair.begin()
            made = feed.step(taker, room=20, keys=keys)
            self.started(made)
            fruitless = 0 if made.starts else fruitless + 1
            is_over = fruitless == len(TAKERS)
            self.pair.compare(
                taken=[start.call.id for start in made.starts],
                worker=taker.worker,
                are_taking_all=[each.worker for each in TAKERS] if is_over and not self.pair.is_neglected else (),
            )
            if is_over:
                return
        message = "steps find more, again and again"
        raise AssertionError(message)

    def held(self, taker: feed.Taker | None = None) -> list[feed.Start]:
        """Return the starts whose calls are still the worker's, or any worker's, the oldest first."""
        return [
            start
            for start in self.starts
            if self.pair.tickets.get(start.call.id) == start.call.ticket
            and (taker is None or self.rules.calls[start.call.id].worker == taker.worker)
        ]

    def started(self, made: feed.Step) -> None:
        for start in made.starts:
            call = self.rules.calls[start.call.id]
            assert start.claimed.attempt == call.attempt + 1
        self.starts = [*self.held(), *made.starts]

    @precondition(lambda self: self.held())
    @rule(number=numbers)
    def give_back(self, number: int) -> None:
        self.pair.begin()
        start = self.held()[number % len(self.held())]
        self.rules.put_back(self.rules.calls[start.call.id])
        fed.give_back([start.handle])
        self.pair.compare()

    @precondition(lambda self: self.held())
    @rule(number=numbers, wait=waits, name=names)
    def put_off(self, number: int, wait: timedelta, name: str) -> None:
        now = self.pair.begin()
        start, key = self.held()[number % len(self.held())], name if wait > seconds(1) else None
        self.rules.stop(start.call.id, now, wait, key)
        fed.put_off(start, wait, key)
        self.pair.compare()

    @precondition(lambda self: any(start not in self.held() for start in self.starts))
    @rule(how=st.sampled_from(["ends", "is given back", "is put off"]))
    def come_late_to_a_step(self, how: str) -> None:
        """Let a worker report a start whose ticket was replaced: nothing changes."""
        self.pair.begin()
        start = next(start for start in self.starts if start not in self.held())
        ids = {"call_id": start.call.id, "ticket": start.call.ticket, "claim_id": start.claimed.claim_id}
        match how:
            case "ends":
                assert not feed.step(
                    TAKERS[0], [finish.Ended(**ids, ending=endings.completed("late"))], room=0
                ).recorded
            case "is given back":
                fed.give_back([start.handle])
            case _:
                fed.put_off(start, seconds(30), None)
        self.pair.compare()

    # People

    @rule(name=names, wait=waits, what=st.sampled_from(["pause", "resume", "resume", "block"]))
    def close_or_open(self, name: str, wait: timedelta, what: str) -> None:
        now, key = self.pair.begin(), self.rules.keys[name]
        match what:
            case "pause":
                key.is_paused = True
                api.pause(name)
            case "resume":
                key.is_paused, key.blocked_until = False, ALWAYS
                api.resume(name)
            case _:
                key.blocked_until = max(key.blocked_until, now + wait)
                api.block(name, wait)
        self.pair.compare()

    @rule(data=st.data(), name=names, wait=waits, what=st.sampled_from(["limit", "override", "override", "end"]))
    def change_limits(self, data: st.DataObject, name: str, wait: timedelta, what: str) -> None:
        self.put_limits(name, data.draw(st.one_of(limits_of(name), st.just(Limits(concurrency=0)))), wait, what)

    def put_limits(self, name: str, limits: Limits, wait: timedelta, what: str) -> None:
        now, key = self.pair.begin(), self.rules.keys[name]
        match what:
            case "limit":
                key.put(now, own=limits, other=key.other, until=key.other_until)
                api.limit(name, limits._asdict())
            case "override":
                named = {field: value for field, value in limits._asdict().items() if value is not None}
                key.put(now, own=key.own, other=key.own._replace(**named), until=now + wait)
                api.override(name, until=now + wait, **named)
            case _:
                key.put(now, own=key.own)
                api.end_override(name)
        self.pair.compare()

    @precondition(lambda self: self.rules.calls)
    @rule(picks=st.lists(numbers, min_size=1, max_size=3), what=st.sampled_from(["cancel", "retry", "run_now"]))
    def move_calls(self, picks: list[int], what: str) -> None:
        self.pair.begin()
        known = list(self.rules.calls)
        ids = list(dict.fromkeys(known[pick % len(known)] for pick in picks))
        states = {
            "cancel": ("scheduled", "available", "dispatched", "retryable"),
            "retry": TERMINAL,
            "run_now": ("scheduled", "available", "retryable"),
        }[what]
        movable = [call_id for call_id in self.rules.in_state(*states) if call_id in ids]
        for call_id in reversed(movable):
            call = self.rules.calls[call_id]
            if what == "run_now":
                self.sent += 1
                call.position = -self.sent
            if what == "retry":
                call.attempt, call.crashes, call.returns, call.expires_at = 0, 0, 0, NEVER
            call.move("cancelled" if what == "cancel" else "available")
        assert sorted({"cancel": api.cancel, "retry": api.retry, "run_now": api.run_now}[what](ids)) == sorted(movable)
        self.pair.compare()

    # The end

    def teardown(self) -> None:
        """Let everything run to its end, and check the whole database."""
        if not self.pair.agrees:
            return
        for name, key in self.rules.keys.items():
            if key.other != Limits():
                self.put_limits(name, key.own, seconds(0), "end")
            if key.own != self.limits[name]:
                self.put_limits(name, self.limits[name], seconds(0), "limit")
            if key.is_paused or key.blocked_until != ALWAYS:
                self.close_or_open(name, seconds(0), "resume")
        for _ in range(200):
            if not self.rules.in_state("scheduled", "available", "dispatched", "active", "retryable"):
                break
            self.pair.now += seconds(61)
            self.tick()
            self.take_until_none_is_left()
            while self.rules.in_state("dispatched"):
                self.claim(0)
            while self.rules.in_state("active"):
                self.begin_end(self.pick(0, "active"), "completes", seconds(1), None)
        # Of a call that waited again after its run the rows do not show how long it held its room: each step has.
        audit(limits_changed=True, now=self.pair.now)


def somebody() -> heartbeat.WorkerInfo:
    """Return a worker that was not seen before."""
    return replace(HERE, id=uuid4(), queues=["one", "two"])


def must_not_run() -> None:
    """Be the task of a call whose claim should be refused."""
    message = "a call ran whose claim should have been refused"
    raise AssertionError(message)
