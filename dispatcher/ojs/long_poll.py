"""Long polling: requests that wait for a call to fetch, for the next event, or for room in a queue.

Each occupies a thread of its server, but no database connection: one thread of the process polls for all requests that
wait to fetch. Their number is bounded, so that threads stay free for other requests.
"""

import logging
import os
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Event, Lock, Thread
from time import monotonic, sleep
from typing import Final
from uuid import UUID, uuid4

from django.db import connections
from django.http import HttpRequest

from dispatcher import sql
from dispatcher.conf import conf
from dispatcher.models import Process
from dispatcher.ojs.api import access_of

logger = logging.getLogger(__name__)

_LOOK_S: Final = 0.02
"""The interval of the polling thread."""
_CHECK_S: Final = 1.0
"""How often the polling thread checks that the credentials are still valid."""


@dataclass(eq=False, kw_only=True)
class Waiter:
    """A request that waits for a call. In the database it has the mark of an idle worker, which who wakes it takes."""

    who: Hashable
    queues: Sequence[str]
    is_allowed: Callable[[], bool]
    opens_s: float | None = None
    """In how many seconds a key opens on which a lane of its queues is parked."""
    is_woken: bool = False
    """Whether somebody has taken its mark, or may be taking it; after the wait."""
    mark: UUID = field(default_factory=uuid4)
    has_ended: Event = field(default_factory=Event)

    def wait(self, seconds: float) -> None:
        """Block the thread until it is woken, its credentials are not valid any more, or the time is up.

        The thread closes its connections, except those in a transaction.
        """
        if seconds > 0:
            disconnect()
            self.has_ended.wait(seconds)


@dataclass(frozen=True, kw_only=True)
class Fetchable:
    """A queue that workers fetch from; has_due: calls of it are scheduled or retryable, and their time has come."""

    name: str
    has_due: bool


class Waiters:
    """The waiting requests of one process."""

    def __init__(self) -> None:
        """Start without any."""
        self.clear()

    def clear(self) -> None:
        """Forget all waiting requests: a forked process has none of its parent's."""
        self._lock = Lock()
        self._places: Counter[str] = Counter()
        self._waiting: list[Waiter] = []
        """In order of arrival."""
        self._watcher: Thread | None = None

    def __len__(self) -> int:
        """Return how many requests wait for a call."""
        return len(self._waiting)

    @contextmanager
    def reserve(self, who: str) -> Iterator[bool]:
        """Reserve a place among the waiting requests, if the limits in total and per token allow it."""
        settings = conf()
        of_token = settings.http_waiters_per_token
        with self._lock:
            is_free = self._places.total() < settings.http_waiters
            has_place = is_free and (of_token is None or self._places[who] < of_token)
            self._places[who] += has_place
        try:
            yield has_place
        finally:
            with self._lock:
                self._places[who] -= has_place
                self._places = +self._places

    @contextmanager
    def waiting(self, who: Hashable, queues: Sequence[str], is_allowed: Callable[[], bool]) -> Iterator[Waiter]:
        """Mark a request as one that waits for calls of these queues.

        is_allowed: whether the credentials are still valid; called about once a second, by another thread, once for all
        requests with the same `who`.
        """
        waiter = Waiter(who=who, queues=queues, is_allowed=is_allowed)
        (opens_in,) = sql.fetch("mark_waiting", timedelta, {"mark": waiter.mark, "queues": list(queues)})
        waiter.opens_s = None if opens_in is None else opens_in.total_seconds()
        try:
            with self._lock:
                self._waiting.append(waiter)
                # A thread that could not be started, or has died, is replaced.
                if self._watcher is None or not self._watcher.is_alive():
                    self._watcher = Thread(target=self._watch, name="dispatcher-waiters", daemon=True)
                    self._watcher.start()
            yield waiter
        finally:
            with self._lock:
                self._waiting.remove(waiter)
            waiter.is_woken = all(sql.fetch("delete_mark", bool, {"mark": waiter.mark}))

    def _watch(self) -> None:
        """Poll for the waiting requests until there are none."""
        check_at = monotonic() + _CHECK_S
        while waiting := self._left():
            try:
                self._wake(waiting)
                if monotonic() >= check_at:
                    check_at = monotonic() + _CHECK_S
                    self._check(waiting)
            except Exception:
                # All requests that wait in this process depend on this thread.
                logger.exception("failed to poll for waiting requests; retrying")
                disconnect()
            sleep(_LOOK_S)
        disconnect()

    def _left(self) -> Sequence[Waiter]:
        with self._lock:
            waiting = [waiter for waiter in self._waiting if not waiter.has_ended.is_set()]
            if not waiting:
                self._watcher = None
        return waiting

    def _wake(self, waiting: Sequence[Waiter]) -> None:
        """Wake the requests whose marks were taken, and for each queue with calls that are due the first."""
        marks = Process.objects.filter(id__in=[each.mark for each in waiting], idle_at__isnull=False)
        idle = set(marks.values_list("id", flat=True))
        queues = {queue for waiter in waiting for queue in waiter.queues}
        due = {
            queue.name
            for queue in sql.fetch("fetchable_queues", Fetchable, {"queues": sorted(queues)})
            if queue.has_due
        }
        for waiter in waiting:
            if waiter.mark not in idle or not due.isdisjoint(waiter.queues):
                due.difference_update(waiter.queues)
                waiter.has_ended.set()

    def _check(self, waiting: Sequence[Waiter]) -> None:
        """End the requests whose credentials are not valid any more."""
        is_allowed = {who: ask() for who, ask in {waiter.who: waiter.is_allowed for waiter in waiting}.items()}
        for waiter in waiting:
            if not is_allowed[waiter.who]:
                waiter.has_ended.set()


WAITERS: Final = Waiters()
"""The waiting requests of this process."""
os.register_at_fork(after_in_child=WAITERS.clear)


def disconnect() -> None:
    """Close this thread's database connections, except those in a transaction."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()


@contextmanager
def reserve_wait(request: HttpRequest, wait: timedelta) -> Iterator[timedelta]:
    """Yield how long the request may wait: zero if too many wait, or if the server has a single thread."""
    if not wait or not request.META.get("wsgi.multithread", True):
        yield timedelta(0)
        return
    with WAITERS.reserve(access_of(request).name) as has_place:
        yield wait if has_place else timedelta(0)
