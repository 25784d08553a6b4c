"""The ends of a process's calls: those that a trip records together, and those that need a transaction of their own."""

import logging
from collections import deque
from collections.abc import Collection
from time import monotonic
from typing import Final
from uuid import UUID

from dispatcher import sql
from dispatcher.ending import Ending
from dispatcher.engine import attempt, direct
from dispatcher.lifecycle.finish import Ended
from dispatcher.worker.call import Run

logger = logging.getLogger(__name__)

_RETRY_S: Final = 0.02
"""How soon an end is brought again whose call another transaction had locked; each time in vain doubles it."""
_LONGEST_RETRY_S: Final = 1.0


class Ends:
    """The runs that have ended and are not recorded yet."""

    def __init__(self) -> None:
        """Have none yet."""
        self._ended: deque[Run] = deque()
        self._locked: dict[Run, tuple[float, float]] = {}
        """Those whose call another transaction had locked: when they are brought again (monotonic), and the pause."""

    def __len__(self) -> int:
        """How many there are, without those that are brought again later."""
        return len(self._ended)

    @property
    def unrecorded(self) -> list[Ended]:
        """Those that a trip can record, and none has."""
        return [run.ended for run in self._left if run.is_plain]

    @property
    def handles(self) -> list[direct.Handle]:
        """The calls of all that are not recorded, which the process still holds."""
        return [run.handle for run in self._left]

    @property
    def _left(self) -> list[Run]:
        return [*dict.fromkeys([*self._ended, *self._locked])]

    @property
    def next_at(self) -> float | None:
        """When the next of these is brought again, as a monotonic time."""
        return min((at for at, _ in self._locked.values()), default=None)

    def add(self, run: Run) -> None:
        """Note that a run has ended, in any thread."""
        self._ended.append(run)

    def drop(self) -> None:
        """Record none of them: their leases end."""
        self._ended.clear()
        self._locked.clear()

    def take(self) -> list[Run]:
        """Return the ends that the next trip records; deal with those that need a transaction of their own."""
        now = monotonic()
        self._ended.extend(run for run, (at, _) in self._locked.items() if at <= now and run not in self._ended)
        ends: list[Run] = []
        try:
            self._sort(ends)
        except BaseException:
            self.take_again(ends)
            raise
        return ends

    def take_again(self, ends: list[Run]) -> None:
        """Take these ends again in the next trip."""
        self._ended.extendleft(run for run in reversed(ends) if run not in self._locked)

    def settle(self, ends: list[Run], locked: Collection[UUID]) -> None:
        """Forget the ends that a trip has recorded, or whose tickets were replaced; keep those that were locked."""
        for run in ends:
            if run.start.call.id in locked:
                self._bring_again(run)
            else:
                self._locked.pop(run, None)

    def record_apart(self, ends: list[Run]) -> None:
        """Record ends one by one, of which the database refused one."""
        while ends:
            run = ends[0]
            is_locked = False
            try:
                is_locked = direct.record_apart(run.start, run.ended)
            except sql.DATABASE_ERRORS as fault:
                if not sql.is_refused(fault):
                    self.take_again(ends)
                    raise
                logger.exception("the end of call %s was refused; it waits for the end of its lease", run.start.call.id)
            self.settle(ends[:1], [run.start.call.id] if is_locked else [])
            ends.pop(0)

    def _bring_again(self, run: Run) -> None:
        _, pause = self._locked.get(run, (0.0, _RETRY_S / 2))
        pause = min(2 * pause, _LONGEST_RETRY_S)
        self._locked[run] = monotonic() + pause, pause

    def _sort(self, ends: list[Run]) -> None:
        while self._ended:
            run = self._ended.popleft()
            if run.is_plain:
                ends.append(run)
                continue
            try:
                _settle(run)
                self._locked.pop(run, None)
            except Exception as fault:
                if sql.is_locked(fault):
                    self._bring_again(run)
                    continue
                if not sql.is_refused(fault):
                    self._ended.appendleft(run)
                    raise
                # What the task gave can't be stored; tried again, it would keep this process from all others.
                run.end = run.failed(fault)
                self.record_apart([run])


def _settle(run: Run) -> None:
    """Record an end that needs a transaction of its own."""
    if isinstance(run.end, Ending):
        attempt.record(run.ended)
    else:
        direct.give_back([run.handle])
