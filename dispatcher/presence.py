"""A worker's presence: it says that it is there, what it holds, and when it goes; and it keeps its connections."""

import logging
import random
import socket
import sys
from collections.abc import Callable
from os import getpid
from threading import Event, Thread
from typing import Any, Final
from uuid import UUID

import uuid_utils.compat as uuid7
from celery import bootsteps
from celery.worker import WorkController, state
from django.db import DatabaseError, InterfaceError, close_old_connections, connections

from dispatcher import workers
from dispatcher.conf import conf
from dispatcher.lifecycle.heartbeat import Held, Here

logger = logging.getLogger(__name__)

DATABASE_ERRORS: Final = (DatabaseError, InterfaceError)


class _Identity:
    """What this process, or the one that forked it, is called among the workers."""

    worker: UUID | None = None


def worker_id() -> UUID | None:
    """Return the id of the worker that this process belongs to; None outside of one."""
    return _Identity.worker


class Presence(bootsteps.StartStopStep):
    """Registers the worker, and renews from a thread of its own the leases of all that it holds.

    So the heartbeat goes on while every process of the pool is busy. A worker that stops puts back what it has
    not started at once, and what it had to give up when its pool has ended.
    """

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: WorkController, **kwargs: Any) -> None:
        """Give the worker its id, before the pool's processes are forked; nothing runs yet."""
        super().__init__(worker, **kwargs)
        _Identity.worker = self.id = uuid7.uuid7()
        self.worker = worker
        self.over = Event()

    def start(self, worker: WorkController) -> None:
        """Start the heartbeat; the first one registers the worker."""
        del worker
        _start(self._beat)

    def close(self, worker: WorkController) -> None:
        """Put back what was fetched and not started: the worker takes no more."""
        del worker
        self._try("put back what it had fetched", lambda: workers.leave(self.id, held()))

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
        self.over.set()
        self._try("put back what it had to give up", lambda: workers.part(self.id))

    def _beat(self) -> None:
        """Say again and again what is there; after a failure sooner, so that leases outlast a short one."""
        while not self.over.is_set():
            is_heard = self._try("send its heartbeat", lambda: workers.beat(self._here(), held()))
            period = conf().heartbeat.total_seconds() / (1 if is_heard else 3)
            self.over.wait(period * random.uniform(0.9, 1.0))  # noqa: S311 -- so that not all come at once
        connections.close_all()

    def _here(self) -> Here:
        worker = self.worker
        return Here(
            id=self.id,
            name=worker.hostname,
            host=socket.gethostname(),
            pid=getpid(),
            pool=worker.pool_cls.__module__.rsplit(".", 1)[-1],
            processes=worker.pool.num_processes or worker.concurrency,
            queues=list(worker.app.amqp.queues.consume_from),
        )

    def _try(self, what: str, work: Callable[[], object]) -> bool:
        try:
            close_old_connections()
            work()
        except DATABASE_ERRORS:
            # What it holds is believed for several heartbeats, and recovered after that.
            logger.warning("worker %s could not %s", self.worker.hostname, what, exc_info=True)
            return False
        except Exception:
            # A worker that falls silent over it would lose all that it runs.
            logger.exception("worker %s could not %s", self.worker.hostname, what)
            return False
        return True


def _start(work: Callable[[], None]) -> None:
    """Start a thread of the system's own, also where gevent has put greenlets in the place of threads."""
    gevent = sys.modules.get("gevent")
    if gevent is not None and gevent.monkey.is_module_patched("threading"):
        gevent.get_hub().threadpool.spawn(work)
    else:
        Thread(target=work, name="dispatcher-heartbeat", daemon=True).start()


class KeptConnections(bootsteps.Step):
    """Lets the worker keep its database connections as CONN_MAX_AGE says, as Django does between requests.

    Celery closes them before and after every task, and a new one costs more than the rest of a call. A worker
    whose CELERY_DB_REUSE_MAX is set keeps to that. (Celery reads it before any task class is known, so it is set
    where it was read to; should that place go, connections are merely closed as before.)
    """

    def __init__(self, worker: WorkController, **kwargs: Any) -> None:
        """Change Celery's part, before the pool's processes are forked."""
        super().__init__(worker, **kwargs)
        for fixup in getattr(worker.app, "_fixups", ()):
            of_worker = getattr(fixup, "_worker_fixup", None)
            if of_worker is not None and getattr(of_worker, "db_reuse_max", 0) is None:
                of_worker.db_reuse_max = 2**31


def held() -> list[Held]:
    """Return (call, ticket) of every message that this worker holds, running or fetched."""
    # The consumer's thread changes the set meanwhile: only the copy of what is under it can't be interrupted.
    reserved = [reference() for reference in list(state.reserved_requests.data)]
    requests = [(request.id, getattr(request, "ticket", None)) for request in reserved if request is not None]
    return [(UUID(call), ticket) for call, ticket in requests if ticket is not None]
