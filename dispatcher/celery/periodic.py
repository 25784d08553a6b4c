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
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from celery import Celery, Task, bootsteps, signals
from celery.worker import WorkController
from celery.worker.strategy import default as default_strategy
from django.db import connections
from kombu.message import Message

from dispatcher import engine
from dispatcher.celery import results
from dispatcher.celery.heartbeat import Identity, try_to
from dispatcher.conf import conf
from dispatcher.lifecycle import periodic_runs
from dispatcher.lifecycle.periodic_runs import CLEANUP, RECOVER, TICK, Periodic
from dispatcher.messages import broker
from dispatcher.messages.tickets import TICKET_HEADER

if TYPE_CHECKING:
    from celery.worker.consumer import Consumer  # see dispatcher.celery.fence

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
        del worker
        until = monotonic() + _STOP_S
        for thread in [*self._running.values()]:
            thread.join(max(0.0, until - monotonic()))

    def _watch(self) -> None:
        while not self._is_over:
            asked = {name for name in self._asked if name not in self._running}
            self._asked -= asked
            for name in sorted(asked):
                self._run(name, partial(run, name))
            if monotonic() >= self._looks_at:
                self._looks_at = monotonic() + self._pause()
                if conf().fallback_schedule:
                    try_to("look for periodic tasks", self._look)
            if not self._looks_often():
                connections.close_all()
            self._news.wait(max(0.0, self._looks_at - monotonic()))
            self._news.clear()
        connections.close_all()

    def _look(self) -> None:
        """Run the tasks whose rows elect this worker."""
        number, all_works = Identity.worker, works()
        if number is None or Identity.has_direct is None:
            return
        tasks = [work.task for name, work in all_works.items() if name not in self._running]
        won = periodic_runs.begin(tasks, worker=number, reaches_broker=broker.reaches_workers())
        self._has_ticked = TICK in won
        self._looks_at = monotonic() + self._pause()
        for name in won:
            self._run(name, all_works[name].run, is_checked=True)

    def _looks_often(self) -> bool:
        queues = self.worker.app.amqp.queues.consume_from
        return self._has_ticked or bool(Identity.has_direct) or conf().dispenser_queue in queues

    def _pause(self) -> float:
        """Return for how long to wait before the next look, in seconds."""
        if Identity.has_direct is None:
            return _FIRST_S
        pause = conf().tick if self._looks_often() else conf().heartbeat
        # So that not all workers come at once.
        return pause.total_seconds() * random.uniform(0.9, 1.0)  # noqa: S311

    def _run(self, name: str, work: Callable[[], object], *, is_checked: bool = False) -> None:
        if works()[name].task.every < _OFTEN:
            try_to(f"run {name}", work, is_checked=is_checked)
        else:
            self._begin(name, partial(self._run_alone, name, work))

    def _run_alone(self, name: str, work: Callable[[], object]) -> None:
        try_to(f"run {name}", work)
        connections.close_all()
        del self._running[name]
        self._news.set()

    def _begin(self, name: str, work: Callable[[], object]) -> None:
        thread = self._running[name] = Thread(target=work, name=name, daemon=True)
        thread.start()


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


_silent: Final = SimpleNamespace(publish=lambda *_, **__: None)
"""Sends no event that a message was sent."""


def send_quietly(task: Task, *args: Any, **options: Any) -> Any:
    """Send a message of a periodic task, as `apply_async` does, without the event `task-sent`."""
    return Task.apply_async(task, *args, **{"event_dispatcher": _silent, **options})


# In beat


@signals.beat_init.connect
def be_quiet(**_: Any) -> None:
    """Leave out beat's line "Sending due task" for the dispenser's tasks: the tick alone would write 86,400 a day."""
    logging.getLogger("celery.beat").addFilter(_is_wanted)


def _is_wanted(record: logging.LogRecord) -> bool:
    is_sending = isinstance(record.msg, str) and record.msg.startswith("Scheduler: Sending due task")
    task = record.args[-1] if isinstance(record.args, tuple) and record.args else None
    return not (is_sending and record.levelno == logging.INFO and task in works())
