"""The periodic tasks in a worker: run beside its pool, when their rows elect it and when messages of beat ask for them.

A message of beat is not run as a Celery task. The worker acknowledges it and wakes a thread of its own, so that ticks
send no events, make no transactions in a tracer, write no lines in the log, and take no process of the pool.
"""

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

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
from dispatcher.messages import broker
from dispatcher.messages.tickets import TICKET_HEADER
from dispatcher.sql import faults

if TYPE_CHECKING:
    from celery.worker.consumer import Consumer  # see dispatcher.celery.unknown

logger = logging.getLogger(__name__)

_OFTEN: Final = timedelta(seconds=5)
"""Tasks that run more often run one after the other in the thread that looks; others have threads of their own."""
_FIRST_S: Final = 0.2
"""How long a worker waits between two looks until its first heartbeat is recorded."""
_STOP_S: Final = 2.0
"""How long a worker that stops waits for the runs that it has begun."""


# What the tasks do


@dataclass(frozen=True, kw_only=True)
class Work:
    """A periodic task, and what it does."""

    task: Periodic
    run: Callable[[], int]


_extras: Final[dict[str, Work]] = {}


def register(name: str, *, every: timedelta, run: Callable[[], int]) -> None:
    """Have workers run a task of another package periodically, as they run the engine's own."""
    _extras[name] = Work(task=Periodic(name=name, every=every), run=run)


def works() -> dict[str, Work]:
    """Return all periodic tasks by name."""
    runs = {TICK: engine.tick, RECOVER: _recover, CLEANUP: engine.cleanup}
    return {task.name: Work(task=task, run=runs[task.name]) for task in periodic_runs.periodic()} | _extras


def _recover() -> int:
    results.report_soon()
    return engine.recover()


def run(name: str) -> int:
    """Run a periodic task that was asked for, and record that; return what it did."""
    work = works()[name]
    periodic_runs.begin([work.task])
    return work.run()


# Where they run


class PeriodicTasks(bootsteps.StartStopStep):
    """Runs the periodic tasks that messages ask for, and by itself those whose rows elect this worker.

    Workers of direct queues and of the dispenser's, and one that has just run the tick, look once a tick; all others
    with every heartbeat, and keep no connection for it.
    """

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: WorkController, **kwargs: Any) -> None:
        """Let the strategy of the tasks find this step; nothing runs yet."""
        super().__init__(worker, **kwargs)
        worker.dispatcher_periodic = self
        self.worker = worker
        self._is_over = False
        self._news = Event()
        self._asked: set[str] = set()
        """Those that a message has asked for since they began."""
        self._running: dict[str, Thread] = {}
        """The threads of those that run seldom, and the one that looks."""
        self._looks_at = 0.0
        self._has_ticked = False
        """Whether the latest look has elected this worker for the tick."""

    def start(self, worker: WorkController) -> None:
        """Begin to look for what is to run."""
        del worker
        self._begin("dispatcher-periodic", self._watch)

    def ask(self, name: str) -> None:
        """Run a task soon; one that runs by now once more after that."""
        self._asked.add(name)
        self._news.set()

    def close(self, worker: WorkController) -> None:
        """Begin nothing more."""
        del worker
        self._is_over = True
        self._news.set()

    def stop(self, worker: WorkController) -> None:
        """Wait a moment for what has begun: what is cut off here, the next run in another worker does."""
        self.close(worker)
        until = monotonic() + _STOP_S
        for thread in [*self._running.values()]:
            thread.join(max(0.0, until - monotonic()))

    def terminate(self, worker: WorkController) -> None:
        """Begin nothing more, and wait for nothing."""
        self.close(worker)

    def _watch(self) -> None:
        while not self._is_over:
            asked = {name for name in self._asked if name not in self._running}
            self._asked -= asked
            for name in sorted(asked):
                self._run(name, partial(run, name))
            if monotonic() >= self._looks_at:
                self._looks_at = monotonic() + self._pause()
                if conf().fallback_schedule:
                    _attempt("look for periodic tasks", self._look)
            if not self._looks_often():
                connections.close_all()
            self._news.wait(max(0.0, self._looks_at - monotonic()))
            self._news.clear()
        connections.close_all()

    def _look(self) -> None:
        """Run the tasks whose rows elect this worker."""
        number, all_works = worker_id(), works()
        if number is None or has_direct() is None:
            return
        tasks = [work.task for name, work in all_works.items() if name not in self._running]
        won = periodic_runs.begin(tasks, worker=number, reaches_broker=broker.reaches_workers())
        self._has_ticked = TICK in won
        self._looks_at = monotonic() + self._pause()
        for name in won:
            self._run(name, all_works[name].run)

    def _looks_often(self) -> bool:
        queues = self.worker.app.amqp.queues.consume_from
        return self._has_ticked or bool(has_direct()) or conf().dispenser_queue in queues

    def _pause(self) -> float:
        """Return for how long to wait before the next look, in seconds."""
        if has_direct() is None:
            return _FIRST_S
        pause = conf().tick if self._looks_often() else conf().heartbeat
        # So that not all workers come at once.
        return pause.total_seconds() * random.uniform(0.9, 1.0)  # noqa: S311

    def _run(self, name: str, work: Callable[[], object]) -> None:
        if works()[name].task.every < _OFTEN:
            _attempt(f"run {name}", work)
        else:
            self._begin(name, partial(self._run_alone, name, work))

    def _run_alone(self, name: str, work: Callable[[], object]) -> None:
        _attempt(f"run {name}", work)
        connections.close_all()
        del self._running[name]
        self._news.set()

    def _begin(self, name: str, work: Callable[[], object]) -> None:
        thread = self._running[name] = Thread(target=work, name=name, daemon=True)
        thread.start()


def _attempt(what: str, work: Callable[[], object]) -> None:
    """Do this in a thread that must go on whatever happens; after a failure on another connection."""
    try:
        close_old_connections()
        work()
    except sql.DATABASE_ERRORS as fault:
        connections.close_all()
        if not faults.report(fault):
            logger.warning("could not %s: %s", what, fault)
    except Exception:
        logger.exception("could not %s", what)


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
