"""Due: what depends on time, or completes what others left: notes, calls whose time has come, calls that expire."""

from collections.abc import Collection
from dataclasses import astuple, dataclass
from datetime import datetime, timedelta

from dispatcher import sql
from dispatcher.conf import conf
from dispatcher.models import CallQueue, Worker
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
    """Let the calls of these queues and tasks that came back without a start go on, if a live worker knows the tasks.

    Their time comes now. Return how many; the caller dispenses after the commit. Relies on the index call_returned.
    """
    at, woken = now or sql.now(), 0
    served = {"queues__contains": list(queues), "tasks__contains": list(tasks), "serves_until__gt": at}
    if not Worker.objects.filter(**served).exists():
        return 0
    returned = CallQueue.objects.filter(returns__gt=0, finished_at=None, state=State.SCHEDULED, scheduled_at__gt=at)
    mine = returned.filter(queue__in=queues, task__in=tasks).select_for_update(skip_locked=True, no_key=True)
    while True:
        with sql.own_transaction():
            ids = list(mine.order_by("id").values_list("id", flat=True)[: conf().batch])
            CallQueue.objects.filter(id__in=ids).update(scheduled_at=at)
        woken += wake_due(queues, now=now)
        if len(ids) < conf().batch:
            return woken


def discard_expired(*, now: datetime | None = None) -> int:
    """Discard calls that did not start in time; return how many. The next trip serves those that they kept waiting."""
    params = {"now": now, "most": conf().batch, "states": [*WAITING, State.RETRYABLE]}
    (ended,) = sql.fetch_in_order("discard_expired", int, params)
    return ended
