"""What workers do: they claim what the broker delivers, or take calls by themselves; they run, end and report them."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from dispatcher.errors import RateLimited
from tests.drive import Run
from tests.model.pair import Pair, Worker
from tests.model.rules import Rules
from tests.model.strategies import names, numbers, waits

STRANGER = "zoe"
"""A worker that holds nothing."""


class Workers:
    """Workers of the three deliveries."""

    pair: Pair
    rules: Rules
    workers: Sequence[Worker]
    runs: dict[UUID, Run]
    compare: Callable[..., None]

    def free(self, *states: str) -> list[UUID]:
        """Return the calls in these states that are not locked."""
        return [call_id for call_id in self.rules.in_state(*states) if self.pair.is_free(call_id)]

    def pick(self, number: int) -> Run:
        runs = self.running()
        return runs[number % len(runs)]

    def running(self, worker: str | None = None) -> list[Run]:
        """Return the runs that are not locked, of a worker or of all."""
        runs = [self.runs[call_id] for call_id in self.free("active")]
        return [run for run in runs if worker in (None, run.worker)]

    def has(*states: str) -> Callable[[Any], bool]:
        return precondition(lambda self: bool(self.free(*states)))

    @has("dispatched")
    @rule(number=numbers, worker=st.sampled_from(["ann", "ben"]))
    def claim(self, number: int, worker: str) -> None:
        """Let a worker take a message of the broker's, and start the call if it may."""
        now, found = self.pair.begin(), self.free("dispatched")
        call_id = found[number % len(found)]
        call, ticket = self.rules.calls[call_id], self.pair.tickets[call_id]
        may_start = self.rules.may_start(call_id, now)
        run = self.pair.drives[call.lane.queue].claim(call_id, ticket, worker=worker)
        assert (run is not None) == may_start, f"{run}, and it may start: {may_start}, {call}"
        if run is not None:
            self.rules.start(call_id, now, worker=worker)
            assert (run.attempt, run.start_at) == (call.attempt, call.started_at)
            self.runs[call_id] = run
        self.compare()

    @rule(number=st.integers(0, 4), room=st.sampled_from([1, 1, 2, 3, 9]), ends=st.integers(0, 3))
    def take(self, number: int, room: int, ends: int) -> None:
        """Let a worker record what ended, and take what may start."""
        self.take_once(self.workers[number], room, ends)

    def take_once(self, worker: Worker, room: int, ends: int = 0) -> list[Run]:
        now = self.pair.begin()
        ended = [run for run in self.running(worker.name) if self.rules.calls[run.call].lane.queue in worker.queues]
        ended = ended[:ends]
        for run in ended:
            self.rules.complete(run.call)
        if "http" in worker.queues:
            self.rules.wake(now, "http")
        taken = worker.drive.take(room, ends=ended, worker=worker.name, queues=worker.queues)
        assert len(taken) <= room
        # A worker that has met a lock has come again a moment later.
        self.pair.now = self.pair.clock.now
        self.compare(taken=taken, looked_for=worker if len(taken) < room else None, served=worker.queues)
        return taken

    @rule()
    def take_all(self) -> None:
        """Let the workers take calls until none finds more."""
        while any(self.take_once(worker, 20) for worker in self.workers if self.has_calls_for(worker)):
            pass

    def has_calls_for(self, worker: Worker) -> bool:
        return any(lane.queue in worker.queues for lane in self.rules.waiting(self.pair.now))

    @precondition(lambda self: self.running())
    @rule(
        number=numbers,
        how=st.sampled_from(["completes", "completes", "fails", "fails for good", "is stopped"]),
        wait=waits,
        name=st.one_of(st.none(), names),
    )
    def end(self, number: int, how: str, wait: timedelta, name: str | None) -> None:
        """Let a run end, whose worker has no room for another."""
        now, run = self.pair.begin(), self.pick(number)
        name = None if name in self.pair.touched.keys else name
        error: BaseException | None = None
        match how:
            case "completes":
                self.rules.complete(run.call)
            case "is stopped":
                error = RateLimited(wait, key=name)
                self.rules.stop(run.call, now, wait, name)
            case _:
                error = KeyError("for good") if how == "fails for good" else ValueError("this time")
                self.rules.fail(run.call, now, may_retry=how == "fails")
        assert self.drive_of(run).end(run, error=error), "its ticket should have been good"
        self.compare()

    @precondition(lambda self: self.running())
    @rule(number=numbers)
    def give_back(self, number: int) -> None:
        self.pair.begin()
        run = self.pick(number)
        call = self.rules.calls[run.call]
        self.rules.put_back(call, has_run=call.lane.delivery == "http")
        assert self.drive_of(run).give_back(run)
        self.compare()

    @has("dispatched", "active")
    @rule(number=numbers)
    def beat(self, number: int) -> None:
        """Let a worker renew the lease of a call that it runs, or whose message it has."""
        now, found = self.pair.begin(), self.free("dispatched", "active")
        call_id = found[number % len(found)]
        call = self.rules.calls[call_id]
        worker = call.worker or "ann"
        self.rules.beat(call_id, now, worker=worker)
        run = Run(call=call_id, ticket=self.pair.tickets[call_id], attempt=call.attempt, start_at=now, worker=worker)
        self.drive_of(run).beat(run, worker=worker)
        self.compare()

    @precondition(lambda self: self.running())
    @rule(number=numbers)
    def beat_for_another(self, number: int) -> None:
        """Let a worker report a call that another one runs: it renews nothing."""
        self.pair.begin()
        run = self.pick(number)
        assert self.drive_of(run).beat(run, worker=STRANGER) == 0
        self.compare()

    @precondition(lambda self: any(self.rules.calls[run.call].lane.queue != "http" for run in self.running()))
    @rule(number=numbers)
    def lose(self, number: int) -> None:
        """Let a worker's process die while the worker lives."""
        now = self.pair.begin()
        runs = [run for run in self.running() if self.rules.calls[run.call].lane.queue != "http"]
        run = runs[number % len(runs)]
        self.rules.lose(run.call, now)
        assert self.drive_of(run).lose(run)
        self.compare()

    def drive_of(self, run: Run) -> Any:
        return self.pair.drives[self.rules.calls[run.call].lane.queue]
