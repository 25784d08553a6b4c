"""A worker registers, sends heartbeats for its calls, puts them back when it stops, and keeps its connections."""

import atexit
import gc
import logging
import random
import socket
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from os import getpid
from threading import Event, Thread, current_thread, main_thread
from time import monotonic, sleep
from typing import Any, ClassVar, Final
from uuid import UUID
from weakref import WeakSet

import uuid_utils.compat as uuid7
from celery import bootsteps
from celery.worker import WorkController, state
from celery.worker.request import Request
from django.db import close_old_connections, connections

from dispatcher import sql
from dispatcher.conf import conf
from dispatcher.engine import attempt, workers
from dispatcher.lifecycle.heartbeat import ReservedCall, WorkerInfo
from dispatcher.sql import faults

logger = logging.getLogger(__name__)

_LONGEST_WAIT_S = 5.0
"""How long each step of a shutdown waits for the database."""
_NAP_S = 0.02
_LONGEST_NAP_S = 0.5
_KEPT_S = 600
"""How long a worker keeps a connection that Django would close after each task."""
_GREEN = {"gevent", "eventlet"}
"""The pools whose tasks run in greenlets."""


class Identity:
    """The worker of this process, or of the process that forked it."""

    worker: UUID | None = None
    """Its id; None outside of a worker."""
    name: str | None = None
    has_direct: bool | None = None
    """Whether any of its queues was direct at its last heartbeat; None before the first."""


running: Final[WeakSet[Request]] = WeakSet()
"""The messages whose tasks the pool runs. Celery's own sets are not enough: a reconnect to the broker clears those that
are reserved (before Celery 5.7 the running ones with them), and a revoke removes one whose process still ends."""


class Presence(bootsteps.StartStopStep):
    """Registers the worker, and renews from a thread of its own the leases of all that it holds.

    So the heartbeat goes on while every process of the pool is busy. A worker that stops puts back what it has
    not started at once, and what it had to give up when its pool has ended.
    """

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: WorkController, **kwargs: Any) -> None:
        """Give the worker its id, before the pool's processes are forked; nothing runs yet."""
        super().__init__(worker, **kwargs)
        Identity.worker = self.id = uuid7.uuid7()
        Identity.name = worker.hostname
        self.worker = worker
        self.over = Event()
        self.background = _Background()
        self.threads: list[Thread | None] = []

    def start(self, worker: WorkController) -> None:
        """Start the heartbeat, which registers the worker, and the thread for work beside the worker's loop."""
        del worker
        # The interpreter would collect all modules before it ends, which takes up to a second.
        atexit.register(gc.freeze)
        self.threads = [_start_thread(self._beat, name="dispatcher-heartbeat"), self.background.start()]

    def close(self, worker: WorkController) -> None:
        """Put back calls that were fetched and not started; the worker accepts no more."""
        del worker
        fetched = reserved_calls()
        self._soon("put back what it had fetched", lambda: workers.stop_accepting(self.id, fetched))

    def stop(self, worker: WorkController) -> None:
        """Go on until the pool has ended its tasks, and then no more."""
        # The heartbeat must outlive the tasks: Celery would stop this step before the pool.
        worker.pool.stop()
        self._part()

    def terminate(self, worker: WorkController) -> None:
        """Put back what runs, once the pool's processes are gone."""
        worker.pool.terminate()
        self._part()

    def _part(self) -> None:
        # Greenlets and threads may outlive the shutdown: the heartbeat goes on for them, as long as the process does.
        if not attempt.running():
            self.over.set()
        if (keeper := self._keeper) is not None:
            keeper.finish()
        self._soon("put back what it had to give up", lambda: workers.release_all(self.id))
        self.background.stop()
        until = monotonic() + _LONGEST_WAIT_S
        # Tests run a worker in a thread of their process, and then drop the database, which these have connections to.
        for thread in self.threads if self.over.is_set() else ():
            if thread is not None:
                thread.join(max(0.0, until - monotonic()))
        # So has this one, if it is such a thread.
        if current_thread() is not main_thread():
            connections.close_all()

    def _soon(self, what: str, work: Callable[[], object]) -> None:
        """Do this outside the worker's loop, and wait a bounded time: a hanging database does not block a shutdown."""
        done = Event()

        def do() -> None:
            try_to(what, work)
            done.set()

        in_background(what, do)
        until = monotonic() + _LONGEST_WAIT_S
        # In short naps: with gevent the event is set by a thread of the system's, which need not wake this greenlet.
        while not done.is_set() and monotonic() < until:
            sleep(_NAP_S)
        if not done.is_set():
            logger.warning("worker %s stops, and does not wait until it has %s", self.worker.hostname, what)

    def _beat(self) -> None:
        """Send a heartbeat every period; sooner after a failure, so that leases survive a short outage."""
        while not self.over.is_set():
            is_recorded = try_to("send its heartbeat", self._record)
            period = conf().heartbeat.total_seconds() / (1 if is_recorded else 3)
            self.over.wait(period * random.uniform(0.9, 1.0))  # noqa: S311 -- so that not all come at once
        connections.close_all()

    def _record(self) -> None:
        keeper = self._keeper
        held = [*reserved_calls(), *(keeper.held() if keeper is not None else ())]
        Identity.has_direct = bool(workers.record_heartbeat(self._worker_info(), held))

    @property
    def _keeper(self) -> Any:
        """What keeps the worker's loops, once it has some: see dispatcher.worker.keeper."""
        return getattr(self.worker, "dispatcher_keeper", None)

    def _worker_info(self) -> WorkerInfo:
        worker = self.worker
        return WorkerInfo(
            id=self.id,
            name=worker.hostname,
            host=socket.gethostname(),
            pid=getpid(),
            pool=worker.pool_cls.__module__.rsplit(".", 1)[-1],
            # Celery has none once a cold shutdown has stopped the pool.
            processes=getattr(worker.pool, "num_processes", None) or worker.concurrency,
            queues=list(worker.app.amqp.queues.consume_from),
            tasks=sorted(worker.app.tasks),
        )


class _Background:
    """A thread with a connection of its own for work on the database that the worker's loop must not wait for.

    In order. While the database is unavailable the work is tried again, for the setting's patience; what needs a row
    that another transaction has locked comes again behind the rest.
    """

    current: ClassVar["_Background | None"] = None
    """That of the worker of this process, or of the one that forked it."""

    def __init__(self) -> None:
        self.pid = 0
        self.waiting: deque[tuple[str, Callable[[], object]]] = deque()
        self.news = Event()
        self.is_over = False

    def start(self) -> Thread | None:
        """Start the thread, and take the work of this process from now on."""
        self.pid = getpid()
        _Background.current = self
        return _start_thread(self._run, name="dispatcher-background")

    def stop(self) -> None:
        """Take no more work; the thread ends when it has done what waits."""
        _Background.current = None
        self.is_over = True
        self.news.set()

    def add(self, what: str, work: Callable[[], object]) -> None:
        self.waiting.append((what, work))
        self.news.set()

    def _run(self) -> None:
        while self.waiting or not self.is_over:
            # With gevent an event that another thread sets may not wake this one: it looks by itself, too.
            self.news.wait(_LONGEST_NAP_S)
            self.news.clear()
            locked: list[tuple[str, Callable[[], object]]] = []
            while self.waiting:
                what, work = self.waiting.popleft()
                try_to(what, partial(_do_or_put_off, work, partial(locked.append, (what, work))))
            self.waiting.extend(locked)
        connections.close_all()


def _start_thread(work: Callable[[], None], *, name: str) -> Thread | None:
    """Start a thread that ends with its process, and return it; with gevent one of the system's, which none returns."""
    gevent = sys.modules.get("gevent")
    if gevent is not None and gevent.monkey.is_module_patched("threading"):
        gevent.get_hub().threadpool.spawn(work)
        return None
    thread = Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread


def _do_or_put_off(work: Callable[[], object], put_off: Callable[[], object]) -> None:
    """Do this, or put it off while another transaction has locked a row: what is behind it does not wait for that."""

    def may_pass(fault: BaseException) -> bool:
        return sql.is_unavailable(fault) and not sql.is_locked(fault)

    try:
        attempt.retry_while_unavailable(work, may_pass=may_pass)
    except sql.DATABASE_ERRORS as fault:
        if not sql.is_locked(fault):
            raise
        put_off()


def in_background(what: str, work: Callable[[], object]) -> None:
    """Do this work on the database beside the worker's loop, soon; outside of a worker, at once.

    what: names it in the log, should it fail. It may be done twice, where the database's answer is lost.
    """
    background = _Background.current
    if background is not None and background.pid == getpid():
        background.add(what, work)
    else:
        try_to(what, work)


def try_to(what: str, work: Callable[[], object], *, is_checked: bool = False) -> bool:
    """Do this on a connection that can be used; log what fails, and return whether nothing did.

    is_checked: this thread has just used it, so it is not checked again.
    """
    try:
        if not is_checked:
            close_old_connections()
        work()
    except sql.DATABASE_ERRORS as fault:
        if sql.is_unavailable(fault):
            # It may lead to a server that is read-only by now.
            sql.discard_connection()
        if not faults.report(fault):
            # What a worker holds is believed for several heartbeats, and recovered after that.
            words = faults.in_words(fault)
            logger.warning("worker %s could not %s: %s", Identity.name, what, words or fault, exc_info=words is None)
        return False
    except Exception:
        # A worker that stopped its heartbeats would lose all calls that it runs.
        logger.exception("worker %s could not %s", Identity.name, what)
        return False
    return True


class KeptConnections(bootsteps.Step):
    """Lets the worker keep its database connections as CONN_MAX_AGE says, as Django does between requests.

    Celery closes them before and after every task, and a new one costs more than the rest of a call. So does Django
    where CONN_MAX_AGE is 0, its default: then the worker keeps that of the dispatcher all the same, and checks it
    before each task, unless Django pools it. A worker whose CELERY_DB_REUSE_MAX is set keeps to that. (Celery reads it
    before any task class is known, so it is set where it was read to; should that place go, connections are merely
    closed as before.)

    Greenlets end with their task, so their connections would not be used again: there Celery goes on closing them.
    """

    def __init__(self, worker: WorkController, **kwargs: Any) -> None:
        """Change Celery's part and the worker's settings, before the pool's processes are forked."""
        super().__init__(worker, **kwargs)
        if worker.pool_cls.__module__.rsplit(".", 1)[-1] in _GREEN:
            return
        for fixup in getattr(worker.app, "_fixups", ()):
            of_worker = getattr(fixup, "_worker_fixup", None)
            if of_worker is not None and getattr(of_worker, "db_reuse_max", 0) is None:
                of_worker.db_reuse_max = 2**31
                settings = sql.connection().settings_dict
                if settings["CONN_MAX_AGE"] == 0 and not settings["OPTIONS"].get("pool"):
                    settings.update(CONN_MAX_AGE=_KEPT_S, CONN_HEALTH_CHECKS=True)


def reserved_calls() -> list[ReservedCall]:
    """Return (call, ticket) of every message that this worker holds, running or fetched."""
    # The consumer's thread changes the sets meanwhile: only the copy of what is under them can't be interrupted.
    sets: tuple[Any, ...] = (state.reserved_requests, state.active_requests, running)
    references = [reference for each in sets for reference in list(each.data)]
    requests = {request for reference in references if (request := reference()) is not None}
    found = [(request.id, getattr(request, "ticket", None)) for request in requests]
    return [(UUID(call), ticket) for call, ticket in found if ticket is not None]
