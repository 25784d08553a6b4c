"""The queues of a feed: those of its worker that are direct, and their turns."""

from collections.abc import Callable
from time import monotonic

from dispatcher.engine import workers
from dispatcher.limits.turns import Turns


class DirectQueues:
    """The direct queues of a worker, looked up once in a while."""

    def __init__(self, queues: Callable[[], list[str]]) -> None:
        """Know none yet. queues: returns all queues of the worker."""
        self._queues = queues
        self.names: list[str] = []
        self.turns = Turns()
        """Which comes next, where their weights differ."""
        self._until = 0.0

    def look_up(self, *, keep_s: float) -> bool:
        """Look which there are, and at their weights, if that is as long ago; return whether they are others now."""
        if monotonic() < self._until:
            return False
        known, weights = self.names, workers.direct_queues(self._queues())
        self.names = list(weights)
        self.turns.set_weights(weights)
        self._until = monotonic() + keep_s
        return self.names != known
