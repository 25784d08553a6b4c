"""Waiters: requests that wait for a call to fetch, for the next event, or for room in a queue.

Each holds a thread of its server, but no connection to the database: one thread of the process looks for all that wait
to fetch. Their number is bounded, so that threads are left for other requests.
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
"""How long the thread rests between two looks."""
_CHECK_S: Final = 1.0
"""How often it checks that those who wait still may."""


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A queue with calls for a fetch: about how many, and whether some are due and not yet available.

    awake: lanes that no pass has looked at since they were woken.
    """

    name: str
    calls: int
    awake: list[int]
    is_due: bool


@dataclass(eq=False, kw_only=True)
class _Waiter:
    who: Hashable
    queues: Collection[str]
    is_allowed: Callable[[], bool]
    has_ended: Event = field(default_factory=Event)
    is_ready: bool = False


class Waiters:
    """The requests of one process that wait."""

    def __init__(self) -> None:
        """Begin with none."""
        self.clear()

    def clear(self) -> None:
        """Forget those that wait: in a forked process none of its parent's does."""
        self._lock = Lock()
        self._places: Counter[str] = Counter()
        self._waiting: list[_Waiter] = []
        """In the order in which they came."""
        self._watcher: Thread | None = None

    def __len__(self) -> int:
        """Return how many wait for a call."""
        return len(self._waiting)

    @contextmanager
    def place(self, who: str) -> Iterator[bool]:
        """Take a place among the requests that may wait, if one is left in all and for this token; give it back."""
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

    def wait(self, who: Hashable, queues: Collection[str], seconds: float, is_allowed: Callable[[], bool]) -> bool:
        """Hold the thread until one of these queues may have a call, and return True; False after so many seconds.

        is_allowed: whether these credentials may still wait; asked about once a second, by another thread, for all of
        the same `who` at once. The caller's thread gives up its connections, but for those in a transaction.
        """
        disconnect()
        waiter = _Waiter(who=who, queues=queues, is_allowed=is_allowed)
        try:
            with self._lock:
                self._waiting.append(waiter)
                # One that could not be started, or has died, is replaced.
                if self._watcher is None or not self._watcher.is_alive():
                    self._watcher = Thread(target=self._watch, name="dispatcher-waiters", daemon=True)
                    self._watcher.start()
            waiter.has_ended.wait(seconds)
        finally:
            with self._lock:
                self._waiting.remove(waiter)
        return waiter.is_ready

    def _watch(self) -> None:
        """Look for those that wait, until there are none."""
        check_at = monotonic() + _CHECK_S
        while waiting := self._left():
            try:
                self._wake(waiting)
                if monotonic() >= check_at:
                    check_at = monotonic() + _CHECK_S
                    self._check(waiting)
            except Exception:
                logger.exception("failed to look for the requests that wait; they wait on")
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
        """Wake as many as there are calls, those that have waited longest first."""
        queues = {queue for waiter in waiting for queue in waiter.queues}
        calls = {queue.name: queue.calls for queue in ready([*queues], most=len(waiting))}
        for waiter in waiting:
            name = next((name for name in waiter.queues if calls.get(name)), None)
            if name is not None:
                calls[name] -= 1
                waiter.is_ready = True
                waiter.has_ended.set()

    def _check(self, waiting: Sequence[_Waiter]) -> None:
        """End the requests of those who may not wait any more."""
        is_allowed = {who: ask() for who, ask in {waiter.who: waiter.is_allowed for waiter in waiting}.items()}
        for waiter in waiting:
            if not is_allowed[waiter.who]:
                waiter.has_ended.set()


WAITERS: Final = Waiters()
"""Those of this process."""
os.register_at_fork(after_in_child=WAITERS.clear)


def ready(queues: Sequence[str], *, most: int) -> list[Ready]:
    """Return which of these queues have calls that a fetch may take, in the order given; of each up to `most`."""
    return sql.fetch("ready_queues", Ready, {"queues": list(queues), "most": most})


def disconnect() -> None:
    """Give up this thread's connections to databases, but for those in a transaction."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()


RETRY_AFTER: Final = {"Retry-After": "1"}
"""What a request is answered with that could not wait for as long as it asked for."""


@contextmanager
def place(request: HttpRequest, wait: timedelta) -> Iterator[timedelta]:
    """Yield for how long the request may wait: for no time where too many do, or the server has one thread only."""
    if not wait or not request.META.get("wsgi.multithread", True):
        yield timedelta(0)
        return
    with WAITERS.place(access_of(request).name) as has_place:
        yield wait if has_place else timedelta(0)
