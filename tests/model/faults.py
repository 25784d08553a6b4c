"""What goes wrong: processes die between two commits, come back late, or keep locked what others need."""

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from dispatcher import ending, request
from dispatcher.engine import ends
from dispatcher.lifecycle.finish import Ended
from dispatcher.models import CallQueue, RateLimitKey
from tests.drive import Run
from tests.faults import end_and_die
from tests.model.pair import Pair, Touched
from tests.model.rules import Call, Rules
from tests.model.strategies import drafts, numbers
from tests.races.lockstep import Actor


class Faults:
    """Processes that die, or are held up, half way."""

    pair: Pair
    rules: Rules
    actor: Actor
    runs: dict[UUID, Run]
    late: list[Run]
    call: Callable[..., Call]
    fields: Callable[[Call], dict[str, Any]]
    compare: Callable[..., None]
    running: Callable[..., list[Run]]
    pick: Callable[[int], Run]
    free: Callable[..., list[UUID]]
    drive_of: Callable[[Run], Any]

    @rule(drafts=st.lists(drafts, min_size=1, max_size=4))
    def send_and_roll_back(self, drafts: list[dict[str, Any]]) -> None:
        now = self.pair.begin()
        calls = [self.call(now, **draft) for draft in drafts]
        with transaction.atomic():
            CallQueue.objects.send_many([request.Call(task="noop", **self.fields(call)) for call in calls])
            transaction.set_rollback(True)
        self.compare()

    @precondition(lambda self: self.running())
    @rule(number=numbers)
    def end_and_die(self, number: int) -> None:
        """Record an end by a process that dies with its commit: what would follow it does not happen."""
        self.pair.begin()
        run = self.pick(number)
        self.rules.complete(run.call)
        end_and_die(run)
        self.pair.lag = max(self.pair.lag, 1)
        self.compare()

    @precondition(lambda self: self.free("dispatched"))
    @rule(number=numbers, how=st.sampled_from(["completes", "fails"]))
    def end_after_a_crash_lost_the_claim(self, number: int, how: str) -> None:
        found = self.free("dispatched")
        call_id = found[number % len(found)]
        call, ticket = self.rules.calls[call_id], self.pair.tickets[call_id]
        # Its room under a throttle is the tick's.
        if any(self.rules.keys[name].limits(self.pair.now).throttle for name in call.held):
            return
        now = self.pair.begin()
        self.rules.prove(call_id, now)
        attempt, policy = call.attempt, self.fields(call)["retry"]
        if how == "completes":
            self.rules.complete(call_id)
            done = ending.completed(None)
        else:
            self.rules.fail(call_id, now)
            done = ending.failed(ValueError("this time"), attempt=attempt, policy=policy)
        assert ends.record_one(Ended(call_id=call_id, ticket=ticket, claim_id=None, ending=done))
        self.pair.lag = max(self.pair.lag, 1)
        self.compare()

    @precondition(lambda self: self.pair.replaced or self.free("active"))
    @rule(number=numbers)
    def deliver_again(self, number: int) -> None:
        """Deliver a message twice, or one whose ticket was replaced: nothing starts."""
        self.pair.begin()
        known = [*self.pair.replaced, *((call_id, self.pair.tickets[call_id]) for call_id in self.free("active"))]
        free = [(call_id, ticket) for call_id, ticket in known if self.pair.is_free(call_id)]
        if free:
            assert self.pair.drives["one"].claim(*free[number % len(free)]) is None
        self.compare()

    @precondition(lambda self: any(self.pair.is_free(run.call) for run in self.late))
    @rule(number=numbers, how=st.sampled_from(["completes", "fails", "beats", "gives back", "is lost"]))
    def come_late(self, number: int, how: str) -> None:
        """Let a worker report a run whose ticket was replaced: nothing changes."""
        self.pair.begin()
        late = [run for run in self.late if self.pair.is_free(run.call)]
        run = late[number % len(late)]
        drive, is_http = self.drive_of(run), self.rules.calls[run.call].lane.queue == "http"
        match how:
            case "completes":
                assert not drive.end(run)
            case "fails":
                assert not drive.end(run, error=ValueError("late"))
            case "gives back":
                drive.give_back(run)
            # A worker that fetches names calls, and not tickets; what it runs is known.
            case "beats" if not is_http:
                assert drive.beat(run, worker=run.worker) == 0
            case "is lost" if not is_http:
                assert not drive.lose(run)
        self.compare()

    # Open transactions of others

    @precondition(lambda self: not self.pair.touched and self.rules.calls)
    @rule(
        number=numbers,
        what=st.sampled_from(["a call", "a lane", "a lane", "its keys", "a lane and its keys"]),
        strength=st.sampled_from(["UPDATE", "NO KEY UPDATE"]),
    )
    def lock(self, number: int, what: str, strength: str) -> None:
        """Let somebody lock rows, and keep them; a lane as steps do: who removes one, senders wait for."""
        found = self.rules.in_state("available", "scheduled", "retryable")
        if not found:
            return
        call_id = found[number % len(found)]
        lane = self.rules.calls[call_id].lane
        touched = Touched()
        self.actor.open()
        if what == "a call":
            touched.calls = {call_id}
            self.actor.do(_lock, "callqueue", strength, [call_id])
        if "lane" in what:
            touched.lanes = {lane}
            lane_id = CallQueue.objects.get(id=call_id).lane_id
            self.actor.do(_lock, "lane", "NO KEY UPDATE", [lane_id])
            self.actor.do(_lock, "lanesite", "NO KEY UPDATE", [lane_id], by="lane_id")
        if "keys" in what:
            touched.keys = set(lane.keys)
            ids = RateLimitKey.objects.filter(name__in=lane.keys).order_by("id").values_list("id", flat=True)
            self.actor.do(_lock, "ratelimitkey", strength, [*ids])
        self.pair.touch(touched)

    @precondition(lambda self: not self.pair.touched)
    @rule(drafts=st.lists(drafts, min_size=1, max_size=3))
    def send_and_hesitate(self, drafts: list[dict[str, Any]]) -> None:
        """Let a caller send within a transaction that stays open."""
        now = self.pair.begin()
        calls = [self.call(now, **draft) for draft in drafts]
        self.actor.open()
        rows = self.actor.do(
            CallQueue.objects.send_many, [request.Call(task="noop", **self.fields(call)) for call in calls]
        )
        assert len(rows) == len(calls)
        self.pair.touch(Touched(set(), {call.lane for call in calls}, {name for call in calls for name in call.costs}))
        self.compare()

    @precondition(lambda self: not self.pair.touched and self.running())
    @rule(number=numbers)
    def end_and_hesitate(self, number: int) -> None:
        """Let a worker record an end, and not commit it yet."""
        self.pair.begin()
        run = self.pick(number)
        self.actor.open()
        self.actor.do(end_and_die, run)
        call = self.rules.calls[run.call]
        self.pair.touch(Touched({run.call}, {call.lane}, set(self.rules.costs(call))))
        self.compare()

    @precondition(lambda self: self.pair.touched)
    @rule()
    def unlock(self) -> None:
        """Let it roll back: what it has locked is as it was before."""
        self.let_go()

    def let_go(self) -> None:
        self.actor.roll_back()
        self.pair.touch(Touched())


def _lock(table: str, strength: str, ids: Sequence[object], *, by: str = "id") -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT FROM dispatcher_{table} WHERE {by} = ANY (%s) ORDER BY {by} FOR {strength}", [[*ids]])
