"""Due: what depends on time, or completes what others left: notes, calls whose time has come, calls that expire."""

from collections.abc import Collection
from dataclasses import astuple, dataclass
from datetime import datetime, timedelta

from dispatcher import sql
from dispatcher.conf import conf
from dispatcher.states import DUE, WAITING, State


@dataclass(frozen=True, kw_only=True)
class Due:
    """Which steps of a tick have something to do."""

    has_overdue: bool
    """A lease of a call that was fetched over HTTP has expired."""
    has_due_calls: bool
    has_expired: bool
    has_unpublished: bool
    has_unplaced: bool
    has_oversized: bool
    """A call waits alone, since it costs too much."""
    has_notes: bool
    """A note is due."""
    has_ready: bool
    """A lane is ready."""
    has_overrides: bool
    """An override has ended that is still on its key."""
    wait: timedelta | None
    """The time until something falls due, None if nothing will; negative if it is late."""

    @property
    def is_any(self) -> bool:
        """Whether there is something to do now."""
        return any(found is True for found in astuple(self))


def ask_due(*, now: datetime | None = None) -> sql.Asked[Due]:
    """Ask which steps of a tick have something to do."""
    return sql.ask("find_due", Due, {"now": now, "publish_after": conf().publish_after})


def wake_due(queues: Collection[str] | None = None, *, now: datetime | None = None) -> int:
    """Let scheduled and retryable calls whose time has come wait in their lanes; return how many.

    queues: whose calls; None is all. The next trip reads the notes for their lanes.
    """
    wanted = {"queues": None if queues is None else list(queues), "states": list(DUE)}
    (woken,) = sql.fetch_in_order("wake_due", int, {**wanted, "now": now, "most": conf().batch})
    return woken


def wake_returned(queues: Collection[str], tasks: Collection[str], *, now: datetime | None = None) -> int:
    """Let the calls of these queues and tasks that came back without a start go on, if a live worker knows the task.

    Return how many. They are noted: after the commit the caller dispenses.
    """
    params = {"queues": list(queues), "tasks": list(tasks), "most": conf().batch, "now": now}
    count = 0
    while True:
        (woken,) = sql.fetch("wake_returned", int, params)
        count += woken
        if woken < conf().batch:
            return count


def discard_expired(*, now: datetime | None = None) -> int:
    """Discard calls that did not start in time; return how many. The next trip serves those that they kept waiting."""
    params = {"now": now, "most": conf().batch, "states": [*WAITING, State.RETRYABLE]}
    (ended,) = sql.fetch_in_order("discard_expired", int, params)
    return ended


def next_due(*, now: datetime | None = None) -> timedelta | None:
    """Return the time until something falls due; see Due.wait."""
    return ask_due(now=now).row().wait
