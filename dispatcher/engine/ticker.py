"""Ticker: one process runs one tick at a time; a tick that arrives meanwhile extends the running one."""

from collections.abc import Callable
from datetime import timedelta
from threading import Event, Lock
from time import monotonic, sleep

_OVERLAP = 0.2
"""A run lasts longer than a tick by this share of it, because the next tick arrives a little late."""
_BACK_TO_BACK = 0.05
"""Two runs are back to back if this share of a tick, or less, lies between them."""


class Ticker:
    """Allows one running tick in a process, by the monotonic clock, which changes of the system's clock do not move.

    A backlog of old ticks is consumed at once: the first one runs, the others extend it and return.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        """Start with no running tick; clock: returns seconds that never decrease."""
        self._clock = clock
        self.until = 0.0
        """The monotonic time at which the run ends, or ended."""
        self._running = 0
        self._active_at = 0.0
        self._lock = Lock()
        self._called = Event()

    def begin(self, tick: timedelta) -> bool:
        """Begin a run of one tick; False if another one is active, which is then extended and looks at once.

        A run that has been inactive for longer than its length (the database hangs, for example) does not block a new
        one. A run back to back with another ends one tick after it: otherwise a single thread that runs all ticks
        would start each later than the one before.
        """
        every = tick.total_seconds()
        length = every * (1 + _OVERLAP)
        with self._lock:
            now = self._clock()
            is_next = -every * _OVERLAP < now - self.until < every * _BACK_TO_BACK
            self.until = self.until + every if is_next else now + length
            if self._running and now - self._active_at < length:
                self._called.set()
                return False
            self._called.clear()
            self._running += 1
            self._active_at = now
            return True

    def is_over(self, wait: timedelta | None) -> bool:
        """End the run if nothing falls due within it, unless another tick has asked for a look."""
        with self._lock:
            self._active_at = self._clock()
            # What is overdue is due now: counted from its time, a run with a backlog would end that much later.
            is_idle = wait is None or self._active_at + max(0.0, wait.total_seconds()) >= self.until
            if self._called.is_set() or not is_idle:
                return False
            self._running -= 1
            return True

    def pause(self, wait: timedelta, *, least: timedelta) -> bool:
        """Wait until something falls due or another tick asks for a look; return whether one did."""
        sleep(least.total_seconds())
        was_called = self._called.wait(max(0.0, (wait - least).total_seconds()))
        self._called.clear()
        return was_called

    def abort(self) -> None:
        """End the run after an error, whatever is due."""
        with self._lock:
            self._running -= 1
