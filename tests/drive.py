"""The verbs by which behaviour tests speak to the system; `tests/deliveries/` has them for each delivery.

A test sends calls, lets workers take and end them, and reads states and slots; it knows no statement and no module of
the engine. What the engine does inside may change: then these files change, and the tests do not. The clock is stopped
(tests.clock) until a test lets time pass.

    (run,) = drive.take()        # a worker starts a call
    drive.end(run)               # and ends it
    drive.forward(1)             # a second passes, and a tick comes

Keys are paused, resumed and blocked, and calls cancelled and retried, by `dispatcher.api`.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar
from uuid import UUID

from dispatcher import api, engine, sql
from dispatcher.celery import revoke
from dispatcher.lifecycle import place, send
from dispatcher.lifecycle.run import ReplaceAsked, RetryAsked
from dispatcher.models import CallQueue, Queue, RateLimitKey, Slot
from dispatcher.reports import Runnable, rate_limit_status, runnable_calls
from dispatcher.reports.status import KeyStatus, Observed
from dispatcher.request import Call, Changes
from dispatcher.states import State
from tests.clock import Clock

TASK = "noop"
DRIVES: dict[str, type["Drive"]] = {}
"""The drive of each delivery that is installed."""


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
        self.site = ""
        """Where its workers are: those of a queue beside another are others, whatever their names."""
        Queue.objects.update_or_create(name=queue, defaults={"delivery": self.delivery})

    def another(self) -> "Drive":
        """Return a drive for the same queue, for use in another thread."""
        drive = type(self)(self.clock, self.queue)
        drive.site = self.site
        return drive

    def beside(self, delivery: str, queue: str | None = None) -> "Drive":
        """Return a drive for another queue; its keys are the same."""
        drive = DRIVES[delivery](self.clock, queue or f"{delivery}s")
        drive.site = f"{drive.queue}/"
        return drive

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
        with sql.atomic():
            (row,) = send.write([send.draft(call, task=TASK, queue=call.queue)]).calls
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
        """Do what is due, as beat's task or a worker does every second; its sweep, the safety net, finds nothing."""
        assert engine.sweep() == 0, "a lane or a key was without the note that leads to it"
        engine.tick(now=self.clock.now)

    def forward(self, seconds: float) -> None:
        """Let time pass; a tick comes at its end."""
        self.clock.forward(seconds)
        self.tick()

    def recover(self) -> int:
        """Put back calls whose leases are over; return how many."""
        return engine.recover(now=self.clock.now)

    @staticmethod
    def status(key: str = "api") -> KeyStatus:
        """Return what the status shows of a key."""
        (status,) = rate_limit_status([key])
        return status

    def observed(self, key: str = "api") -> Observed:
        """Return what the limits of an observed key would have done."""
        found = self.status(key).observed
        assert found is not None
        return found

    def runnable(self) -> Runnable:
        """Return how many calls of the queue could start if a process were free."""
        (found,) = runnable_calls([self.queue], now=self.clock.now)
        return found

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
        return CallQueue.objects.get(id=id_of(call))

    @staticmethod
    def ticket(call: CallQueue | Run | UUID) -> UUID | None:
        """Return the ticket of a call, if it is in flight."""
        return CallQueue.objects.values_list("ticket", flat=True).get(id=id_of(call))

    @staticmethod
    def state(call: CallQueue | Run | UUID) -> State:
        """Return the state of a call."""
        return State(CallQueue.objects.values_list("state", flat=True).get(id=id_of(call)))

    def states(self, calls: Iterable[CallQueue | Run | UUID]) -> list[State]:
        """Return the states of calls."""
        return [self.state(call) for call in calls]

    @staticmethod
    def held(call: CallQueue | Run | UUID) -> dict[str | None, int]:
        """Return the cost that a call in flight holds of each key; {None: 1} if it spends none."""
        return dict(Slot.objects.filter(call=id_of(call)).values_list("key__name", "cost"))

    @staticmethod
    def use(name: str = "api") -> int:
        """Return the cost that calls in flight hold of a key."""
        return sum(Slot.objects.filter(key__name=name).values_list("cost", flat=True))


def ids(of: Iterable[CallQueue | Run]) -> list[UUID]:
    """Return the ids of calls, or of the calls of runs."""
    return [id_of(each) for each in of]


def asking_again(wait: float = 0, **changes: Any) -> BaseException:
    """Return what a task raises that asks for another attempt, with other fields: `self.retry(queue=...)`."""
    return RetryAsked(ValueError("again"), timedelta(seconds=wait), may_retry=True, changes=Changes(**changes))


def becoming_another(*keys: str) -> BaseException:
    """Return what a task raises that replaces itself by one that spends these keys: `self.replace(...)`."""
    placement = json.dumps({"names": sorted(keys), "policies": {}, "senders": {}})
    return ReplaceAsked(Changes(task="noop", args='["another"]', placement=placement), None)


def id_of(call: CallQueue | Run | UUID) -> UUID:
    """Return the id of a call, or of the call of a run."""
    return call.id if isinstance(call, CallQueue) else call.call if isinstance(call, Run) else call
