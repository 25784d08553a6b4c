"""The agenda of a feed: when it looks at keys again that time opens, or that another transaction has locked."""

import heapq
from collections.abc import Collection
from dataclasses import dataclass
from time import monotonic
from typing import Final

from dispatcher.lifecycle.admit import KEY_WAIT

_RETRY_S: Final = 0.01
"""How soon lanes are looked at again whose key another transaction had locked; each time in vain doubles it."""
_LONGEST_RETRY_S: Final = 1.0
_REACHED_S: Final = 5.0
"""How long lanes are left out because the worker has reached its limit of a key; a change of the limit is seen then."""


@dataclass(frozen=True, kw_only=True)
class Busy:
    """A key that another transaction has locked: since when, and when its lanes are looked at again (monotonic)."""

    since: float
    pause: float
    again_at: float


class Agenda:
    """The keys that a feed looks at later; all times are monotonic."""

    def __init__(self) -> None:
        """Look at nothing yet."""
        self._later: list[tuple[float, int]] = []
        self._busy: dict[int, Busy] = {}
        self._reached: dict[int, float] = {}
        """Keys of which the worker holds as much as one worker may, each with when its lanes are looked at again."""

    def remind(self, at: float, key: int) -> None:
        """Look at a key at this time."""
        heapq.heappush(self._later, (at, key))

    def take_due(self) -> set[int]:
        """Return the keys to look at now, and forget them."""
        due: set[int] = set()
        while self._later and self._later[0][0] <= monotonic():
            due.add(heapq.heappop(self._later)[1])
        return due

    @property
    def next_at(self) -> float | None:
        """When the next key is looked at."""
        return self._later[0][0] if self._later else None

    def locked(self, now: float) -> list[int]:
        """Return the keys whose lanes are left out now."""
        return [key for key, busy in self._busy.items() if busy.again_at > now]

    def stuck(self, now: float) -> list[int]:
        """Return the keys that have been locked for so long that their lanes delay no others."""
        return [key for key, busy in self._busy.items() if now - busy.since > KEY_WAIT.total_seconds()]

    def reached(self, now: float) -> set[int]:
        """Return the keys of which the worker holds as much as one worker may: others serve their lanes."""
        self._reached = {key: until for key, until in self._reached.items() if until > now}
        return set(self._reached)

    def note_reached(self, keys: Collection[int]) -> None:
        """Leave out the lanes of these keys until one of the worker's own calls that spends them has ended."""
        for key in keys:
            self._reached[key] = monotonic() + _REACHED_S
            self.remind(self._reached[key], key)

    def forget_reached(self, keys: Collection[int] | None = None) -> None:
        """Look at the lanes of these keys again, or of all."""
        for key in [*self._reached] if keys is None else keys:
            self._reached.pop(key, None)

    def note_busy(self, found: Collection[int], avoided: Collection[int], now: float) -> None:
        """Note which keys a step found locked that began at `now` and left out those of `avoided`."""
        # What was looked at again and was not locked is no longer known as busy.
        self._busy = {key: busy for key, busy in self._busy.items() if busy.again_at > now or key in found}
        for key in set(found).difference(avoided):
            known = self._busy.get(key)
            pause = _RETRY_S if known is None else min(2 * known.pause, _LONGEST_RETRY_S)
            since = now if known is None else known.since
            self._busy[key] = Busy(since=since, pause=pause, again_at=monotonic() + pause)
            self.remind(self._busy[key].again_at, key)

    def keep_while_busy(self, keys: Collection[int]) -> None:
        """Look at these keys again with those that are locked: lanes that are parked on them may spend one of those."""
        if self._busy:
            at = max(busy.again_at for busy in self._busy.values())
            for key in keys:
                self.remind(at, key)
