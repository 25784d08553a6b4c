"""Turns of queues: which queue of a worker comes next, by weights (start-time fair queuing).

Pure. Each queue has the virtual time at which its next start is due. A start moves that time on by the queue's stride,
which is the shorter the higher its weight is. The queue that is due first comes first. The present is when the latest
start was due: a queue that was due before, since it had no call that may start, is due at present.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

MOST_WEIGHT: Final = 1000

_TURN: Final = 720_720_000_000
"""The stride of a weight of 1, a multiple of most small weights: then strides are exact."""
_LOT: Final = 1e-5
"""How far lots may move a queue, by its stride: a small part of the shortest stride."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """When the next start of a queue is due, from the present on, and by how much each start moves that."""

    due: int
    stride: int


class Turns:
    """The turns of one worker's queues."""

    def __init__(self, weights: Mapping[str, int] | None = None) -> None:
        """Begin with the present; no queue has started anything."""
        self._present = 0
        self._due: dict[str, int] = {}
        self._strides: dict[str, int] = {}
        # Not secret: of queues that are due at the same time, one of weight 3 comes first three times as often.
        self._lots = Random(0)  # noqa: S311
        self.set_weights(weights or {})

    def set_weights(self, weights: Mapping[str, int]) -> None:
        """Serve these queues by their weights."""
        is_plain = len(set(weights.values())) <= 1
        self._strides = {} if is_plain else {queue: _TURN // weight for queue, weight in weights.items()}
        self._due = {queue: due for queue, due in self._due.items() if queue in self._strides}

    def shares(self) -> dict[str, Share]:
        """Return the share of each queue; none if all weights are equal: then lanes are served in rotation."""
        return {queue: Share(due=self._next(queue), stride=stride) for queue, stride in self._strides.items()}

    def _next(self, queue: str) -> int:
        ahead = self._due.get(queue, 0) - self._present
        return ahead if ahead > 0 else int(self._lots.expovariate(1) * _LOT * self._strides[queue])

    def note(self, starts: Iterable[str]) -> None:
        """Count starts, each by its queue."""
        latest = self._present
        for queue, count in Counter(starts).items():
            if stride := self._strides.get(queue):
                self._due[queue] = max(self._due.get(queue, 0), self._present) + count * stride
                latest = max(latest, self._due[queue] - stride)
        self._present = latest
