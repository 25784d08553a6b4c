"""Watch: the time that one process serves at a stretch; ticks that come meanwhile prolong it and do not add to it."""

from collections.abc import Callable
from datetime import timedelta
from threading import Event, Lock
from time import monotonic, sleep

_OVERLAP = 0.2
"""How much of a tick a watch lasts beyond it: the next tick comes a little late."""
_RIGHT_UPON = 0.05
"""How much of a tick may pass between two watches of which the second waited for the first."""


class Watch:
    """One at a time for each process, by the monotonic clock, which no change of the system's clock moves.

    So a pile of old ticks is gone at once: the first keeps watch, the others find that somebody does.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        """Begin with nobody on watch; clock: seconds that only go forward."""
        self._clock = clock
        self.until = 0.0
        """The monotonic time at which the watch ends, or ended."""
        self._keepers = 0
        self._heard_at = 0.0
        self._lock = Lock()
        self._called = Event()

    def begin(self, tick: timedelta) -> bool:
        """Begin a watch of one tick; False if somebody keeps it, who then goes on for this tick and looks at once.

        A keeper that was not heard of for longer than a watch, because the database hangs say, keeps nobody away.
        A watch that follows right upon another ends one tick after it: where a single thread serves all ticks, each
        would otherwise come later than the one before.
        """
        every = tick.total_seconds()
        length = every * (1 + _OVERLAP)
        with self._lock:
            now = self._clock()
            is_next = -every * _OVERLAP < now - self.until < every * _RIGHT_UPON
            self.until = self.until + every if is_next else now + length
            if self._keepers and now - self._heard_at < length:
                self._called.set()
                return False
            self._called.clear()
            self._keepers += 1
            self._heard_at = now
            return True

    def is_over(self, wait: timedelta | None) -> bool:
        """End the watch if nothing falls due within it; not while somebody counts on another look."""
        with self._lock:
            self._heard_at = self._clock()
            # What is late is due now: counted from its time, a watch with a backlog would end as much later.
            is_idle = wait is None or self._heard_at + max(0.0, wait.total_seconds()) >= self.until
            if self._called.is_set() or not is_idle:
                return False
            self._keepers -= 1
            return True

    def pause(self, wait: timedelta, *, least: timedelta) -> bool:
        """Wait for what falls due, or for a call to look; return whether there was one."""
        sleep(least.total_seconds())
        was_called = self._called.wait(max(0.0, (wait - least).total_seconds()))
        self._called.clear()
        return was_called

    def break_off(self) -> None:
        """End the watch because of a fault, whatever is due."""
        with self._lock:
            self._keepers -= 1
