"""Due: what depends on time. Calls whose time has come, calls that expire, keys that open, queues that are served."""

from collections.abc import Collection
from datetime import datetime, timedelta

from dispatcher import sql
from dispatcher.conf import conf, needs_worker, pass_bound
from dispatcher.lanes import heads
from dispatcher.states import DUE, WAITING, State


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
    ended = sql.fetch("end_overrides", int, {"now": now})
    opened = sql.fetch("due_keys", int, {"now": now, "most": conf().lanes_per_pass})
    return sorted({*ended, *opened})


def due_queues(*, now: datetime | None = None) -> list[str]:
    """Return the queues that hold lanes up and could let them go on."""
    settings = conf()
    params = {
        "now": now,
        "needs_worker": needs_worker(),
        "ahead": pass_bound(settings),
        "most": settings.lanes_per_pass,
    }
    return sql.fetch("due_queues", str, params)


def next_due(*, now: datetime | None = None) -> timedelta | None:
    """Return the time until something falls due, None if nothing will; negative if it is late."""
    (wait,) = sql.fetch("next_due", timedelta, {"now": now})
    return wait
