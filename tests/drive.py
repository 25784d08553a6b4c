"""The verbs by which behaviour tests speak to the system, written once for each delivery.

A test sends calls, lets workers take and end them, and reads states and slots; it knows no statement and no module of
the engine. What the engine does inside may change: then this file changes, and the tests do not. The clock is stopped
(tests.clock) until a test lets time pass.

    (run,) = drive.take()        # a worker starts a call
    drive.end(run)               # and ends it
    drive.forward(1)             # a second passes, and a tick comes

Keys are paused, resumed and blocked, and calls cancelled and retried, by `dispatcher.api`.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar
from uuid import UUID, uuid4, uuid5

from django.apps import apps

from dispatcher import api, engine
from dispatcher.celery import revoke
from dispatcher.ending import Reported
from dispatcher.engine import attempt, fed, feed, release, workers
from dispatcher.engine.dispenser import dispense_briefly
from dispatcher.errors import RateLimited, WorkerLost
from dispatcher.lifecycle import claim, heartbeat, place, send
from dispatcher.lifecycle.run import Failed, Outcome, RetryAsked, Returned, Stopped, raised
from dispatcher.limits.turns import Turns
from dispatcher.models import CallQueue, Queue, RateLimitKey, Slot
from dispatcher.request import Call, Changes
from dispatcher.states import State
from tests.clock import Clock
from tests.races.lockstep import Mailbox

if apps.is_installed("dispatcher.ojs"):
    from dispatcher.ojs import fetch, pull_workers, worker_reports

TASK = "noop"
_WORKERS = UUID("8c1b7a52-93a6-4b13-8a51-0f9dd3c3a001")
"""The namespace of the ids of Celery's workers, which tests name."""
_STEPS = 50
"""How many steps a worker makes before it waits; that it needs more is a fault."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A call that a worker has started."""

    call: UUID
    ticket: UUID
    attempt: int
    start_at: datetime
    worker: str
    handle: Any = field(default=None, repr=False)
    """What the delivery knows it by."""


class Drive(ABC):
    """The verbs, for one queue of one delivery."""

    delivery: ClassVar[str]

    def __init__(self, clock: Clock, queue: str) -> None:
        self.clock, self.queue = clock, queue
        self.has_other_limits = False
        """Whether limits were changed, so that what started before cannot be held to those of now."""
        Queue.objects.update_or_create(name=queue, defaults={"delivery": self.delivery})

    def another(self) -> "Drive":
        """Return a drive for the same queue, for use in another thread."""
        return type(self)(self.clock, self.queue)

    def beside(self, delivery: str, queue: str | None = None) -> "Drive":
        """Return a drive for another queue; its keys are the same."""
        return DRIVES[delivery](self.clock, queue or f"{delivery}s")

    # Senders

    @staticmethod
    def key(name: str = "api", **limits: Any) -> RateLimitKey:
        """Declare a key."""
        return RateLimitKey.objects.declare(name, **limits)

    def send(self, *keys: str, **fields: Any) -> CallQueue:
        """Send one call. costs: {key: cost}, in place of the keys."""
        return CallQueue.objects.send(TASK, **self._fields(keys, fields))

    def send_many(self, count: int, *keys: str, **fields: Any) -> list[CallQueue]:
        """Send so many calls at once."""
        return CallQueue.objects.send_many([Call(TASK, **self._fields(keys, fields)) for _ in range(count)])

    def send_and_die(self, *keys: str, **fields: Any) -> CallQueue:
        """Send one call from a process that ends with its commit: nothing that would follow it happens."""
        call = Call(TASK, **self._fields(keys, fields))
        (row,) = send.write([send.draft(call, task=TASK, queue=call.queue)])
        if row.lane_id is None:
            place.place([row.id], lock_wait=timedelta(seconds=1))
        return self.row(row)

    def _fields(self, keys: Sequence[str], fields: Mapping[str, Any]) -> dict[str, Any]:
        costs = fields.get("costs")
        return {"queue": self.queue, "keys": costs or keys, **{k: v for k, v in fields.items() if k != "costs"}}

    # Workers

    @abstractmethod
    def take(
        self, room: int = 1, *, ends: Sequence[Run] = (), worker: str = "one", queues: Sequence[str] | None = None
    ) -> list[Run]:
        """Let a worker start up to `room` calls, and return them in order; `ends` have completed, and are recorded."""

    @abstractmethod
    def end(self, run: Run, *, result: object = None, error: BaseException | None = None) -> bool:
        """Record how a run ended, while no process is free for another; return whether it changed anything.

        error: what the task raised; RateLimited is the provider's stop.
        """

    @abstractmethod
    def beat(self, *runs: Run, worker: str = "one") -> int:
        """Send the heartbeat of a worker that holds these runs; return how many of them it renewed."""

    @abstractmethod
    def give_back(self, run: Run) -> bool:
        """Let a call wait again that was started and has not run; return whether it does."""

    def drain(self, room: int = 1) -> list[UUID]:
        """Take and end calls until none starts, and return them in the order of their starts."""
        started: list[UUID] = []
        runs = self.take(room)
        while runs:
            started += [each.call for each in runs]
            runs = self.take(room, ends=runs)
        return started

    # Time and people

    def at(self, seconds: float) -> datetime:
        """Return the time so many seconds from now."""
        return self.clock.now + timedelta(seconds=seconds)

    def tick(self) -> None:
        """Do what is due, as beat's task or a worker does every second."""
        engine.sweep()
        engine.tick(now=self.clock.now)

    def forward(self, seconds: float) -> None:
        """Let time pass; a tick comes at its end."""
        self.clock.forward(seconds)
        self.tick()

    def recover(self) -> int:
        """Put back calls whose leases are over; return how many."""
        return engine.recover(now=self.clock.now)

    @staticmethod
    def revoke(*calls: CallQueue | Run) -> None:
        """Revoke calls, as Celery's command does."""
        revoke.revoke(ids(calls))

    def cleanup(self) -> int:
        """Delete what was kept for long enough, as beat's task does every night; return how many calls."""
        return engine.cleanup(now=self.clock.now)

    def limit(self, name: str = "api", **limits: Any) -> int:
        """Give a key other limits; return how many calls that wait cost more than they ever allow."""
        self.has_other_limits = True
        return api.limit(name, limits)

    def override(self, name: str = "api", *, seconds: float, **limits: Any) -> int:
        """Give a key other limits for so many seconds; return as `limit` does."""
        self.has_other_limits = True
        return api.override(name, until=self.clock.now + timedelta(seconds=seconds), **limits)

    # Readings

    @staticmethod
    def row(call: CallQueue | Run | UUID) -> CallQueue:
        """Return a call as it is now."""
        return CallQueue.objects.get(id=_id_of(call))

    def state(self, call: CallQueue | Run | UUID) -> State:
        """Return the state of a call."""
        return State(self.row(call).state)

    def states(self, calls: Iterable[CallQueue | Run | UUID]) -> list[State]:
        """Return the states of calls."""
        return [self.state(call) for call in calls]

    @staticmethod
    def held(call: CallQueue | Run | UUID) -> dict[str | None, int]:
        """Return the cost that a call in flight holds of each key; {None: 1} if it spends none."""
        return dict(Slot.objects.filter(call=_id_of(call)).values_list("key__name", "cost"))

    @staticmethod
    def use(name: str = "api") -> int:
        """Return the cost that calls in flight hold of a key."""
        return sum(Slot.objects.filter(key__name=name).values_list("cost", flat=True))


class Celery(Drive):
    """Celery's workers run the calls."""

    def beat(self, *runs: Run, worker: str = "one") -> int:
        return sum(1 for each in runs if heartbeat.record(self._worker(worker), [(each.call, each.ticket)]).slots)

    def come(self, worker: str = "one") -> None:
        """Send a heartbeat of a worker that holds no calls; if it is new, or back, its queue goes on."""
        workers.record_heartbeat(self._worker(worker), [])

    def stop(self, *, worker: str = "one") -> None:
        """Let a worker accept no more calls; it holds none that it has not started."""
        workers.stop_accepting(_worker_id(worker), [])

    def lose(self, run: Run, *, is_crash: bool = True) -> bool:
        """Report that the process that ran a call has died; return whether the call was still its own."""
        return engine.lose(run.call, run.ticket, WorkerLost("the process was killed"), is_crash=is_crash)

    def _worker(self, name: str) -> heartbeat.WorkerInfo:
        return heartbeat.WorkerInfo(
            id=_worker_id(name), name=name, host="here", pid=1, pool="prefork", processes=2, queues=[self.queue]
        )


class Direct(Celery):
    """Workers take calls from PostgreSQL."""

    delivery = "direct"

    def __init__(self, clock: Clock, queue: str) -> None:
        super().__init__(clock, queue)
        self.openings: dict[int, datetime] = {}
        """When the feed looks at keys again."""
        self.has_left = False
        """Whether a step has left lanes to a general one."""
        self.turns: dict[str, Turns] = defaultdict(Turns)
        """Which queue of a worker comes next."""

    def take(
        self, room: int = 1, *, ends: Sequence[Run] = (), worker: str = "one", queues: Sequence[str] | None = None
    ) -> list[Run]:
        taker = self._taker(worker, queues or [self.queue])
        ended = [_end_of(each, Returned(result=None)) for each in ends]
        keys = self._due()
        if len(ends) == 1 and ends[0].handle.is_followed and room > 0 and not (keys or self.has_left):
            step = feed.hand_over(taker, ended[0], room=room)
        else:
            step = feed.step(taker, ended, room=room, keys=keys, is_general=self.has_left)
        starts = [*step.starts]
        reached, refilled, stuck = {*step.reached}, set[int](), set[int]()
        for _ in range(_STEPS):
            self.has_left = step.has_left
            self.openings |= {**step.openings, **dict.fromkeys(step.open_keys, self.clock.now)}
            if len(starts) >= room:
                break
            keys = self._due()
            # A lane that is refilled again and again, and starts nothing: another transaction has its calls locked.
            has_new = bool(step.refilled) and (bool(step.starts) or not refilled.issuperset(step.refilled))
            refilled = {*step.refilled}
            # Lanes whose key stays locked for a moment delay no others any more.
            is_stuck, stuck = not stuck.issuperset(step.busy), stuck.union(step.busy)
            if not (step.has_moved or has_new or step.has_left or keys or is_stuck):
                break
            left, is_general = room - len(starts), step.has_left
            step = feed.step(
                taker, room=left, keys=keys, reached=reached, avoid=stuck, stuck=stuck, is_general=is_general
            )
            starts += step.starts
            reached |= {*step.reached}
        else:
            message = "the steps of a worker find more to do, again and again"
            raise AssertionError(message)
        return [_run(each.call.id, each.call.ticket, each.claimed, worker, handle=each) for each in starts]

    def end(self, run: Run, *, result: object = None, error: BaseException | None = None) -> bool:
        before, outcome = self.row(run), _outcome(result, error)
        match outcome:
            case Stopped():
                fed.put_off(run.handle, outcome.wait, outcome.key)
            case Failed(changes=Changes() as changes):
                fed.change(run.handle, attempt.ending_of(outcome, run.handle.claimed), changes)
            case _:
                return bool(feed.step(self._taker(run.worker, []), [_end_of(run, outcome)], room=0).recorded)
        return self.row(run).ticket != before.ticket

    def give_back(self, run: Run) -> bool:
        before = self.row(run)
        fed.give_back([run.handle.handle])
        return self.row(run).ticket != before.ticket

    def _due(self) -> set[int]:
        due = {key for key, at in self.openings.items() if at <= self.clock.now}
        self.openings = {key: at for key, at in self.openings.items() if key not in due}
        return due

    def _taker(self, worker: str, queues: Sequence[str]) -> feed.Taker:
        turns = self.turns[worker]
        if len(queues) > 1:
            turns.set_weights(workers.direct_queues(queues))
        return feed.Taker(worker=_worker_id(worker), queues=queues, tasks=[TASK], turns=turns)


class Broker(Celery):
    """Calls are published through Celery's broker, and claimed by workers."""

    delivery = "broker"

    def __init__(self, clock: Clock, queue: str) -> None:
        super().__init__(clock, queue)
        self.mailbox = Mailbox(queue)

    def take(
        self, room: int = 1, *, ends: Sequence[Run] = (), worker: str = "one", queues: Sequence[str] | None = None
    ) -> list[Run]:
        for each in ends:
            self.end(each)
        taken: list[Run] = []
        for mailbox in [self.mailbox] if queues is None else map(Mailbox, queues):
            while len(taken) < room and (message := mailbox.take()) is not None:
                claimed = self.claim(*message, worker=worker)
                taken += [] if claimed is None else [claimed]
        return taken

    def claim(self, call: UUID, ticket: UUID, *, worker: str = "one") -> Run | None:
        """Start the call of a message; None if it may not start (any more): then it waits again, or has ended."""
        claim_id, worker_id = uuid4(), _worker_id(worker)
        claimed = claim.claim(call, ticket, claim_id=claim_id, worker=worker_id)
        this = attempt.Attempt(call, ticket, claim_id=claim_id, worker=worker_id)
        if isinstance(claimed, claim.Refused):
            if (returned := this.refuse(claimed)) is not None:
                dispense_briefly(lanes=[returned.lane_id], keys=returned.keys)
            return None
        return _run(call, ticket, claimed, worker, handle=(this, claimed))

    def end(self, run: Run, *, result: object = None, error: BaseException | None = None) -> bool:
        this, claimed = run.handle
        # A report that comes twice comes from two processes.
        again = attempt.Attempt(this.call_id, this.ticket, claim_id=this.claim_id, worker=this.worker)
        done = again.record(_outcome(result, error), claimed)
        release.serve(done)
        return done.released is not None

    def give_back(self, run: Run) -> bool:
        returned = attempt.put_back(run.call, run.ticket, claim_id=run.handle[1].claim_id)
        if returned is not None:
            dispense_briefly(lanes=[returned.lane_id], keys=returned.keys)
        return returned is not None


class Http(Drive):
    """Workers fetch calls over HTTP."""

    delivery = "http"

    def take(
        self, room: int = 1, *, ends: Sequence[Run] = (), worker: str = "one", queues: Sequence[str] | None = None
    ) -> list[Run]:
        for each in ends:
            self.end(each)
        if room < 1:
            return []
        calls = fetch.fetch(fetch.FetchRequest(queues=queues or [self.queue], worker=worker, count=room))
        return [
            Run(call=call.id, ticket=call.ticket, attempt=call.attempt, start_at=call.started_at, worker=worker)
            for call in calls
            if call.ticket is not None and call.started_at is not None
        ]

    def end(self, run: Run, *, result: object = None, error: BaseException | None = None) -> bool:
        before = self.row(run)
        match error:
            case None:
                worker_reports.ack(run.call, result=result, ticket=run.ticket, worker=run.worker)
            case RateLimited():
                worker_reports.report_rate_limit(run.call, error.retry_after, key=error.key, ticket=run.ticket)
            case _:
                classes = [base.__name__ for base in type(error).__mro__]
                report = Reported(type=type(error).__name__, message=str(error), classes=classes)
                worker_reports.nack(run.call, report, ticket=run.ticket, worker=run.worker)
        return self.row(run).ticket != before.ticket

    def beat(self, *runs: Run, worker: str = "one") -> int:
        return len(pull_workers.heartbeat(worker, [each.call for each in runs]).kept)

    def give_back(self, run: Run) -> bool:
        before = self.row(run)
        worker_reports.requeue(run.call, ticket=run.ticket)
        return self.row(run).ticket != before.ticket


def ids(of: Iterable[CallQueue | Run]) -> list[UUID]:
    """Return the ids of calls, or of the calls of runs."""
    return [_id_of(each) for each in of]


def asking_again(**changes: Any) -> BaseException:
    """Return what a task raises that asks for another attempt at once, with other fields: `self.retry(queue=...)`."""
    return RetryAsked(ValueError("again"), timedelta(0), may_retry=True, changes=Changes(**changes))


DRIVES: dict[str, type[Drive]] = {drive.delivery: drive for drive in (Direct, Broker, Http)}


def _id_of(call: CallQueue | Run | UUID) -> UUID:
    return call.id if isinstance(call, CallQueue) else call.call if isinstance(call, Run) else call


def _run(call: UUID, ticket: UUID, claimed: claim.Claimed, worker: str, *, handle: object) -> Run:
    at, attempt = claimed.start_at, claimed.attempt
    return Run(call=call, ticket=ticket, attempt=attempt, start_at=at, worker=worker, handle=handle)


def _worker_id(name: str) -> UUID:
    return uuid5(_WORKERS, name)


def _outcome(result: object, error: BaseException | None) -> Outcome:
    return Returned(result=result) if error is None else raised(error)


def _end_of(of: Run, outcome: Any) -> Any:
    start = of.handle
    return start.ended(attempt.ending_of(outcome, start.claimed))
