"""The pace of a feed: how many calls it starts ahead, and how much earlier, by what the latest calls took."""

from datetime import timedelta
from time import monotonic
from typing import Final

from dispatcher.celery.feed_runs import Run

_LEAD_S: Final = 0.004
"""How long before its start a call is given to the pool, whose process waits for the rest; a wait is a millisecond
longer at the most."""
_AHEAD_S: Final = 0.01
"""How long a call that is started ahead may wait for its process, by the average of the latest tasks."""
_MOST_AHEAD: Final = 8
"""How many calls are started ahead for each process at the most."""
_LEAST_S: Final = 0.0005
_WEIGHT: Final = 0.1
"""How much the latest task counts in the average."""
_RECOVERY: Final = 0.02
"""By how much of it a call that ends raises again what is started ahead."""
_TIGHT_S: Final = 1.0
"""How long nothing is started ahead after it was of no use."""
_FIRST_DELAY_S: Final = 0.02
_LEAST_DELAY_S: Final = 0.005
_LONGEST_DELAY_S: Final = 0.5


class Pace:
    """What a feed has learned of its pool and its tasks."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._took_s: float | None = None
        """How long the latest tasks took, on average."""
        self._share = 1.0
        """How much of what could be started ahead is: less after some had to go back, until calls end in time again."""
        self._delay_s = 0.0
        """By how much calls came too late to a process lately; it falls while none does."""
        self._tight_until = 0.0

    @property
    def lead_s(self) -> float:
        """How long before its start a call is given to the pool."""
        return _LEAD_S + self._delay_s

    @property
    def slack(self) -> timedelta:
        """How much later than its start a call may begin, beyond what limits allow for."""
        return timedelta(seconds=self._delay_s if self._delay_s >= _LEAST_DELAY_S else 0)

    def ahead(self, size: int) -> int:
        """Return how many calls more than there are processes are started: of tasks that take a moment only.

        They hold their slots, so limits stay exact; their start is kept within the margin of a window.
        """
        if self._took_s is None or monotonic() < self._tight_until:
            return 0
        return int(self._share * min(_MOST_AHEAD * size, _AHEAD_S * size / max(self._took_s, _LEAST_S)))

    def tighten(self) -> None:
        """Start no call ahead for a second: a throttle gives exact starts, or other workers could use the slots."""
        self._tight_until = monotonic() + _TIGHT_S

    def note_returned(self) -> None:
        """Learn that calls that were started ahead found no process in time, and went back."""
        self._share /= 2

    def learn(self, run: Run) -> None:
        """Learn from a run that has ended."""
        if run.accepted_at is None or run.ended_at is None:
            return
        self._delay_s *= 1 - _WEIGHT / 5
        self._share = min(1.0, self._share + _RECOVERY)
        took = run.ended_at - run.accepted_at
        self._took_s = took if self._took_s is None else self._took_s + (took - self._took_s) * _WEIGHT

    def note_missed(self) -> None:
        """Learn that a process could not begin a call in time."""
        self._delay_s = min(max(2 * self._delay_s, _FIRST_DELAY_S), _LONGEST_DELAY_S)
