"""Runs of a feed: the calls that it has started and whose ends are not recorded yet."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic
from typing import Any, Final
from uuid import UUID

from celery.exceptions import TaskRevokedError

from dispatcher import ending
from dispatcher.celery.fed import End
from dispatcher.ending import Ending
from dispatcher.engine.feed import Handle
from dispatcher.lifecycle.take import Start

_runs: Final[dict[UUID, "Run"]] = {}
"""Those of this process, by call."""


@dataclass(eq=False, kw_only=True)
class Run:
    """A call that a feed has started: from its start to the record of its end."""

    start: Start
    on_end: Callable[["Run"], None]
    """Called once, in any thread."""
    slack: timedelta = timedelta(0)
    """How much later than its start it may begin: what its limits allow for was moved as far."""
    end: End | None = None
    given_at: float = 0.0
    accepted_at: float | None = None
    ended_at: float | None = None
    _is_over: list[bool] = field(default_factory=list)

    @property
    def handle(self) -> Handle:
        """What names its start in the database."""
        return self.start.call.id, self.start.call.ticket

    def accepted(self) -> None:
        """Note that a process runs it."""
        self.accepted_at = monotonic()

    def report(self, end: End | None) -> None:
        """Report how it ended; only the first report counts."""
        self._close(end or self.failed(RuntimeError("the worker's process returned no end of the attempt")))

    def revoke(self) -> None:
        """End it as revoked before a process ran it."""
        self._close(ending.terminated(TaskRevokedError("revoked before it ran"), attempt=self.start.attempt))

    def failed(self, error: BaseException) -> Ending:
        """Return the end of an attempt that failed outside of the task."""
        return ending.failed(error, attempt=self.start.attempt, policy=self.start.retry)

    def _close(self, end: End) -> None:
        # Appending is atomic: of two threads one comes second.
        self._is_over.append(True)
        if len(self._is_over) > 1:
            return
        self.end, self.ended_at = end, monotonic()
        self.on_end(self)


def add(run: Run) -> None:
    """Know a run by its call."""
    _runs[run.start.call.id] = run


def drop(run: Run) -> None:
    """Forget a run."""
    if _runs.get(run.start.call.id) is run:
        del _runs[run.start.call.id]


def find(call: UUID) -> Run | None:
    """Return the run of a call in this process."""
    return _runs.get(call)


def running() -> frozenset[UUID]:
    """Return the claims of the runs in this process: their tickets."""
    return frozenset(run.start.call.ticket for run in _runs.copy().values())


def of_message(message: Any) -> Run | None:
    """Return the run whose message this is; None for one that came through the broker."""
    return getattr(message, "dispatcher_run", None)
