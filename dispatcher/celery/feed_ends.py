"""The ends of a feed's calls: those that a step records together, and those that need a transaction of their own."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from dispatcher import sql
from dispatcher.celery import fed
from dispatcher.celery.feed_runs import Run
from dispatcher.ending import Ending
from dispatcher.engine import fed as engine_fed
from dispatcher.lifecycle.finish import Ended

logger = logging.getLogger(__name__)

Taken: TypeAlias = list[tuple[Run, Ended]]


class Ends:
    """The runs that have ended and are not recorded yet."""

    def __init__(self, *, forget: Callable[[Run], None], restart: Callable[[Run], None]) -> None:
        """Have none yet. forget: called with each run that is recorded. restart: with one that began too late."""
        self._forget, self._restart = forget, restart
        self._ended: deque[Run] = deque()
        self.in_doubt: set[int] = set()
        """Keys whose room may have been given back by ends whose answer is lost."""

    def __len__(self) -> int:
        """How many there are."""
        return len(self._ended)

    @property
    def first_at(self) -> float:
        """When the first of them ended, as a monotonic time."""
        return self._ended[0].ended_at or 0.0

    def add(self, run: Run) -> None:
        """Note that a run has ended, in any thread."""
        self._ended.append(run)

    def drop(self) -> None:
        """Record none of them: their leases end."""
        self._ended.clear()

    def take(self) -> Taken:
        """Return the ends that the next step records; deal with those that need a transaction of their own."""
        ends: Taken = []
        try:
            self._sort(ends)
        except BaseException:
            self.take_again(ends)
            raise
        return ends

    def take_again(self, ends: Sequence[tuple[Run, Ended]]) -> None:
        """Take these ends again in the next step; if they were recorded, the room that they gave back is not known."""
        self._ended.extendleft(run for run, _ in reversed(ends))
        self.in_doubt.update(key for run, _ in ends for key in run.start.keys)

    def record_apart(self, ends: Taken) -> None:
        """Record ends one by one, of which the database refused one."""
        while ends:
            run, ended = ends[0]
            try:
                engine_fed.record_apart(run.start, ended)
            except sql.DATABASE_ERRORS as fault:
                if not sql.is_refused(fault):
                    self.take_again(ends)
                    raise
                logger.exception("the end of call %s was refused; it waits for the end of its lease", run.start.call.id)
            self._forget(run)
            ends.pop(0)

    def _sort(self, ends: Taken) -> None:
        while self._ended:
            run = self._ended.popleft()
            if isinstance(run.end, Ending):
                ends.append((run, run.start.ended(run.end)))
                continue
            try:
                self._settle(run)
            except Exception as fault:
                if not sql.is_refused(fault):
                    self._ended.appendleft(run)
                    self.in_doubt.update(run.start.keys)
                    raise
                # What the task gave can't be stored; tried again, it would keep this feed from all others.
                self.record_apart([(run, run.start.ended(run.failed(fault)))])

    def _settle(self, run: Run) -> None:
        """Record an end that needs a transaction of its own."""
        match run.end:
            case fed.Missed():
                self._restart(run)
                return
            case fed.PutOff(wait=wait, key=key):
                engine_fed.put_off(run.start, wait, key)
            case fed.Changed(ending=ending, changes=changes):
                engine_fed.change(run.start, ending, changes)
            case fed.Lost(record=record):
                record()
        self._forget(run)
