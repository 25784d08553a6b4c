"""The periodic tasks in a worker: run beside its pool when beat asks for them, and without beat when nothing does.

A message of beat is not run as a Celery task. The worker acknowledges it and wakes a thread of its own, so that ticks
send no events, make no transactions in a tracer, write no lines in the log, and take no process of the pool.
"""

import logging
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from threading import Event, Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from celery import Celery, Task, bootsteps
from celery.worker import WorkController
from celery.worker.strategy import default as default_strategy
from django.db import close_old_connections, connections
from kombu.message import Message

from dispatcher import engine, sql
from dispatcher.celery import results
from dispatcher.celery.heartbeat import has_direct, worker_id
from dispatcher.conf import conf
from dispatcher.lifecycle import periodic_runs
from dispatcher.lifecycle.periodic_runs import CLEANUP, RECOVER, TICK, Periodic
from dispatcher.messages.tickets import TICKET_HEADER
from dispatcher.sql import faults

if TYPE_CHECKING:
    from celery.worker.consumer import Consumer  # see dispatcher.celery.unknown

logger = logging.getLogger(__name__)

_SELDOM: Final = timedelta(seconds=5)
"""How often a task may run whose thread keeps its connection to the database from run to run."""
_FIRST_S: Final = 0.2
"""How long a worker waits between two looks until its first heartbeat is recorded."""
_STOP_S: Final = 2.0
"""How long a worker that stops waits for the runs that it has begun."""


# What the tasks do


@dataclass(frozen=True, kw_only=True)
class Extra:
    """A periodic task of another package of the dispatcher."""

    every: timedelta
    run: Callable[[], int]
    is_needed: Callable[[], bool]
    """Whether there is anything for it to do."""


_extras: Final[dict[str, Extra]] = {}


def register(name: str, extra: Extra) -> None:
    """Have workers run a task periodically, as they run the engine's own."""
    _extras[name] = extra


def names() -> set[str]:
    """Return the names of all periodic tasks."""
    return {TICK, RECOVER, CLEANUP, *_extras}


def _recover() -> int:
    results.report_soon()
    return engine.recover()


_WORK: Final[Mapping[str, Callable[[], int]]] = {TICK: engine.tick, RECOVER: _recover, CLEANUP: engine.cleanup}


def run(name: str, *, worker: UUID | None = None) -> int:
    """Run a periodic task, and record that; return what it did.

    worker: the one that runs it by itself; None if it was asked for.
    """
    periodic_runs.record(_tasks()[name], worker=worker)
    return _extras[name].run() if name in _extras else _WORK[name]()


def _tasks() -> dict[str, Periodic]:
    """Return all periodic tasks by name."""
    extras = [Periodic(name=name, every=extra.every) for name, extra in _extras.items()]
    return {task.name: task for task in (*periodic_runs.periodic(), *extras)}


def _wanted() -> Iterator[Periodic]:
    """Yield the periodic tasks that somebody has to run: the extras only where there is something for them."""
    for name, task in _tasks().items():
        if name not in _extras or _extras[name].is_needed():
            yield task


# Where they run


class _Runner:
    """Runs one task in a thread of its own, once at a time; if it is asked for meanwhile, once more after that."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._asked = Event()
        self._is_over = False
        self._is_by_itself = False
        self._thread: Thread | None = None

    def ask(self, *, by_itself: bool) -> None:
        """Run soon; by_itself: because this worker has taken the task over, and not because of a message."""
        self._is_by_itself = by_itself
        self._asked.set()
        if self._thread is None:
            self._thread = Thread(target=self._go_on, name=self.name, daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Run no more after this."""
        self._is_over = True
        self._asked.set()

    def join(self, timeout: float) -> None:
        """Wait until it has ended."""
        if self._thread is not None:
            self._thread.join(timeout)

    def _go_on(self) -> None:
        while self._asked.wait() and not self._is_over:
            self._asked.clear()
            is_well = _attempt(f"run {self.name}", self._run)
            if not is_well or _tasks()[self.name].every >= _SELDOM:
                connections.close_all()
        connections.close_all()

    def _run(self) -> None:
        run(self.name, worker=worker_id() if self._is_by_itself else None)


class PeriodicTasks(bootsteps.StartStopStep):
    """Runs the periodic tasks that messages ask for, and by itself those that nothing has run for some periods.

    Workers that take the dispenser's queue look every few seconds whether something is to be taken over, all others
    with every heartbeat. A worker that has taken over goes on until the task is asked for again, or it stops.
    """

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: WorkController, **kwargs: Any) -> None:
        """Let the strategy of the tasks find this step; nothing runs yet."""
        super().__init__(worker, **kwargs)
        worker.dispatcher_periodic = self
        self.worker = worker
        self._over = Event()
        self._lock = Lock()
        self._runners: dict[str, _Runner] = {}
        self._due: dict[str, float] = {}
        """When a task that was taken over is to run next, by the monotonic clock."""

    def start(self, worker: WorkController) -> None:
        """Begin to look whether something is to be taken over."""
        del worker
        Thread(target=self._watch, name="dispatcher-periodic", daemon=True).start()

    def ask(self, name: str, *, by_itself: bool = False) -> None:
        """Run a task soon, in a thread."""
        with self._lock:
            if not self._over.is_set():
                runner = self._runners.setdefault(name, _Runner(name))
                runner.ask(by_itself=by_itself)

    def close(self, worker: WorkController) -> None:
        """Begin nothing more."""
        del worker
        with self._lock:
            self._over.set()
            for runner in self._runners.values():
                runner.end()

    def stop(self, worker: WorkController) -> None:
        """Wait a moment for what has begun: what is cut off here, the next tick of another worker does."""
        self.close(worker)
        until = monotonic() + _STOP_S
        for runner in self._runners.values():
            runner.join(max(0.0, until - monotonic()))

    def terminate(self, worker: WorkController) -> None:
        """Begin nothing more, and wait for nothing."""
        self.close(worker)

    def _watch(self) -> None:
        while not self._over.is_set():
            is_well = not conf().fallback_schedule or _attempt("look after the periodic tasks", self._look)
            if not self._is_dispenser() and not self._due:
                connections.close_all()
            self._over.wait(self._pause(can_be_short=is_well))
        connections.close_all()

    def _look(self) -> None:
        number = worker_id()
        if number is None:
            return
        tasks = {task.name: task for task in _wanted()}
        mine = periodic_runs.take_over(
            tasks.values(), worker=number, is_dispenser=self._is_dispenser(), is_prompt=bool(has_direct())
        )
        self._note_change(set(mine), number)
        for name in mine:
            due_at, now = self._due.get(name, 0.0), monotonic()
            if due_at <= now:
                every = tasks[name].every.total_seconds()
                self._due[name] = max(due_at + every, now + every / 2)
                self.ask(name, by_itself=True)

    def _note_change(self, mine: set[str], number: UUID) -> None:
        for name in sorted(mine - self._due.keys()):
            logger.log(
                logging.INFO if has_direct() else logging.WARNING,
                "nothing else runs %s: worker %s does now",
                name,
                self.worker.hostname,
            )
        for name in sorted(self._due.keys() - mine):
            logger.info("%s is run again without worker %s (%s)", name, self.worker.hostname, number)
            del self._due[name]

    def _is_dispenser(self) -> bool:
        """Whether it is to run the periodic tasks where nothing else does; a worker of direct queues is."""
        return bool(has_direct()) or conf().dispenser_queue in self.worker.app.amqp.queues.consume_from

    def _pause(self, *, can_be_short: bool) -> float:
        """Return for how long to wait before the next look: until what was taken over runs next, if that is soon."""
        often = _tasks()[TICK].keep if self._is_dispenser() else conf().heartbeat
        # So that not all workers come at once.
        pause = often.total_seconds() * random.uniform(0.9, 1.0)  # noqa: S311
        if not can_be_short:
            return pause
        if has_direct() is None:
            return _FIRST_S
        if not self._due:
            return pause
        return min(pause, max(0.0, min(self._due.values()) - monotonic()))


def _attempt(what: str, work: Callable[[], object]) -> bool:
    """Do this in a thread that must go on whatever happens; return whether it went well."""
    try:
        close_old_connections()
        work()
    except sql.DATABASE_ERRORS as fault:
        if not faults.report_unmigrated(fault):
            logger.warning("could not %s: %s", what, fault)
        return False
    except Exception:
        logger.exception("could not %s", what)
        return False
    return True


def strategy(task: Task, app: Celery, consumer: "Consumer", **options: Any) -> Callable[..., Any]:
    """Return what a worker does with a message of a periodic task: it acknowledges it, and runs the task in a thread.

    A message that carries a ticket or a time is one that a project has sent, and runs like that of any other task.
    """
    plain: Callable[..., Any] = default_strategy(task, app, consumer, **options)
    step: PeriodicTasks | None = getattr(consumer.controller, "dispatcher_periodic", None)
    if step is None:
        return plain

    def take(
        message: Message, body: Any, ack: Callable[..., Any], reject: Callable[..., Any], *rest: Any, **named: Any
    ) -> Any:
        headers = message.headers or {}
        if headers.get(TICKET_HEADER) or headers.get("eta"):
            return plain(message, body, ack, reject, *rest, **named)
        ack(logger, consumer.connection_errors)
        return step.ask(task.name)

    return take


class _Silent:
    """Sends no event that a message was sent."""

    def publish(self, *_: Any, **__: Any) -> None:
        """Do nothing."""


def send_quietly(task: Task, *args: Any, **options: Any) -> Any:
    """Send a message of a periodic task, as `apply_async` does, without the event `task-sent`."""
    # The task's class may have been extended: see dispatcher.celery.fence.
    owner: Any = next(kind for kind in type(task).__mro__ if kind.__dict__.get("apply_async") is send_quietly)
    return super(owner, task).apply_async(*args, **{"event_dispatcher": _Silent(), **options})
