"""Long polling: requests that wait for a call to fetch, for the next event, or for room in a queue.

Each occupies a thread of its server, but no database connection: one thread of the process polls for all requests that
wait to fetch. Their number is bounded, so that threads stay free for other requests.
"""

import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Event, Lock, Thread
from time import monotonic, sleep
from typing import Final

from django.db import connections
from django.http import HttpRequest

from dispatcher import sql
from dispatcher.conf import conf
from dispatcher.ojs.api import access_of

logger = logging.getLogger(__name__)

_LOOK_S: Final = 0.05
"""The interval of the polling thread."""
_CHECK_S: Final = 1.0
"""How often the polling thread checks that the credentials are still valid."""


@dataclass(frozen=True, kw_only=True)
class ReadyQueue:
    """A queue with calls to fetch: about how many, and whether some are due and not yet available.

    awake: lanes that no pass has served since they were woken.
    """

    name: str
    calls: int
    awake: list[int]
    is_due: bool


@dataclass(eq=False, kw_only=True)
class _Waiter:
    who: Hashable
    queues: Collection[str]
    avoid: frozenset[int]
    is_allowed: Callable[[], bool]
    has_ended: Event = field(default_factory=Event)
    is_ready: bool = False


class Waiters:
    """The waiting requests of one process."""

    def __init__(self) -> None:
        """Start without any."""
        self.clear()

    def clear(self) -> None:
        """Forget all waiting requests: a forked process has none of its parent's."""
        self._lock = Lock()
        self._places: Counter[str] = Counter()
        self._waiting: list[_Waiter] = []
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

    def wait(
        self,
        who: Hashable,
        queues: Collection[str],
        seconds: float,
        is_allowed: Callable[[], bool],
        *,
        avoid: Collection[int] = (),
    ) -> bool:
        """Block the thread until one of these queues may have a call, and return True; False after the timeout.

        is_allowed: whether the credentials are still valid; called about once a second, by another thread, once for all
        requests with the same `who`.

        avoid: lanes that spend one of these keys do not count. The caller's thread closes its connections, except those
        in a transaction.
        """
        disconnect()
        waiter = _Waiter(who=who, queues=queues, avoid=frozenset(avoid), is_allowed=is_allowed)
        try:
            with self._lock:
                self._waiting.append(waiter)
                # A thread that could not be started, or has died, is replaced.
                if self._watcher is None or not self._watcher.is_alive():
                    self._watcher = Thread(target=self._watch, name="dispatcher-waiters", daemon=True)
                    self._watcher.start()
            waiter.has_ended.wait(seconds)
        finally:
            with self._lock:
                self._waiting.remove(waiter)
        return waiter.is_ready

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

    def _left(self) -> Sequence[_Waiter]:
        with self._lock:
            waiting = [waiter for waiter in self._waiting if not waiter.has_ended.is_set()]
            if not waiting:
                self._watcher = None
        return waiting

    def _wake(self, waiting: Sequence[_Waiter]) -> None:
        """Wake as many requests as there are calls, those that have waited longest first."""
        for avoid in dict.fromkeys(waiter.avoid for waiter in waiting):
            alike = [waiter for waiter in waiting if waiter.avoid == avoid]
            queues = {queue for waiter in alike for queue in waiter.queues}
            calls = {queue.name: queue.calls for queue in find_ready_queues([*queues], most=len(alike), avoid=avoid)}
            for waiter in alike:
                name = next((name for name in waiter.queues if calls.get(name)), None)
                if name is not None:
                    calls[name] -= 1
                    waiter.is_ready = True
                    waiter.has_ended.set()

    def _check(self, waiting: Sequence[_Waiter]) -> None:
        """End the requests whose credentials are not valid any more."""
        is_allowed = {who: ask() for who, ask in {waiter.who: waiter.is_allowed for waiter in waiting}.items()}
        for waiter in waiting:
            if not is_allowed[waiter.who]:
                waiter.has_ended.set()


WAITERS: Final = Waiters()
"""The waiting requests of this process."""
os.register_at_fork(after_in_child=WAITERS.clear)


def find_ready_queues(queues: Sequence[str], *, most: int, avoid: Collection[int] = ()) -> list[ReadyQueue]:
    """Return which of these queues have calls to fetch, in the given order; counts end at `most`.

    avoid: lanes that spend one of these keys do not count.
    """
    return sql.fetch("ready_queues", ReadyQueue, {"queues": list(queues), "most": most, "avoid": list(avoid)})


def disconnect() -> None:
    """Close this thread's database connections, except those in a transaction."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()


RETRY_AFTER: Final = {"Retry-After": "1"}
"""Headers of a response to a request that could not wait as long as it asked for."""


@contextmanager
def reserve_wait(request: HttpRequest, wait: timedelta) -> Iterator[timedelta]:
    """Yield how long the request may wait: zero if too many wait, or if the server has a single thread."""
    if not wait or not request.META.get("wsgi.multithread", True):
        yield timedelta(0)
        return
    with WAITERS.reserve(access_of(request).name) as has_place:
        yield wait if has_place else timedelta(0)
