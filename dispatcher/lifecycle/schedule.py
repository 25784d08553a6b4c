"""Due: what depends on time. Calls whose time has come, calls that expire, keys that open, queues that are served."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from dispatcher import sql
from dispatcher.conf import conf, needs_worker, pass_bound
from dispatcher.lanes import heads
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
    has_due_keys: bool
    has_awake: bool
    """A lane is awake."""


def ask_due(*, now: datetime | None = None) -> sql.Asked[Due]:
    """Ask which steps of a tick have something to do."""
    return sql.ask("find_due", Due, {"now": now, "publish_after": conf().publish_after})


def wake_due(queues: Collection[str] | None = None, *, now: datetime | None = None) -> int:
    """Let scheduled and retryable calls whose time has come wait in their lanes; return how many.

    queues: whose calls; None is all.
    """
    wanted = {"queues": None if queues is None else list(queues), "states": list(DUE)}
    with sql.own_transaction():
        sql.read_in_order(sorts=False)
        woken = sql.fetch("wake_due", heads.Place, {**wanted, "now": now, "most": conf().batch})
        sql.read_in_order()
        if positions := heads.first(woken):
            sql.change("wake_lanes", {"lanes": sorted(positions)})
            heads.defer_changed(positions, now=now)
    return len(woken)


def discard_expired(*, now: datetime | None = None) -> int:
    """Discard calls that did not start in time; return how many. The next pass serves those that they kept waiting."""
    with sql.own_transaction():
        sql.read_in_order(sorts=False)
        ended = sql.fetch(
            "discard_expired", heads.Place, {"now": now, "most": conf().batch, "states": [*WAITING, State.RETRYABLE]}
        )
        sql.read_in_order()
        heads.defer_changed(heads.first(ended), now=now)
    return len(ended)


def due_keys(*, now: datetime | None = None) -> list[int]:
    """Return the keys that time has opened, by their limits or because their override has run out."""
    with sql.together():
        ended = sql.ask("end_overrides", int, {"now": now})
        opened = sql.ask("due_keys", int, {"now": now, "most": conf().lanes_per_pass})
    return sorted({*ended.rows(), *opened.rows()})


def ask_due_queues(*, now: datetime | None = None) -> sql.Asked[str]:
    """Ask for the queues that hold lanes up and could let them go on."""
    settings = conf()
    params = {
        "now": now,
        "needs_worker": needs_worker(),
        "ahead": pass_bound(settings),
        "most": settings.lanes_per_pass,
    }
    return sql.ask("due_queues", str, params)


def next_due(*, now: datetime | None = None) -> timedelta | None:
    """Return the time until something falls due, None if nothing will; negative if it is late."""
    (wait,) = sql.fetch("next_due", timedelta, {"now": now})
    return wait
