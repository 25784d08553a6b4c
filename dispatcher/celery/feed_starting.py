"""The calls of a feed whose start lies ahead: the pool gets each just in time."""

import heapq
from collections.abc import Iterator
from time import monotonic

from dispatcher.celery.feed_runs import Run


class Starting:
    """Calls whose start lies ahead; all times are monotonic."""

    def __init__(self) -> None:
        """Have none yet."""
        self._runs: list[tuple[float, int, Run]] = []
        self._count = 0

    def add(self, at: float, run: Run) -> None:
        """Keep a call until the time at which the pool gets it."""
        self._count += 1
        heapq.heappush(self._runs, (at, self._count, run))

    def take_due(self) -> Iterator[Run]:
        """Yield the calls whose time has come, in order; each is kept no more."""
        while self._runs and self._runs[0][0] <= monotonic():
            yield heapq.heappop(self._runs)[2]

    @property
    def next_at(self) -> float | None:
        """When the pool gets the next one."""
        return self._runs[0][0] if self._runs else None
