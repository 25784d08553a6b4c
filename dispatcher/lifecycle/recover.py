"""Recover: find calls and slots that a dead process or a lost message left behind."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from dispatcher import sql
from dispatcher.conf import conf, counting, needs_worker, queue_grace
from dispatcher.ending import InFlight
from dispatcher.extension import registered

_SLOTS = 5_000
"""How many slots one recovery reads."""
_LANES = 350
"""At how many lanes one look for stranded ones looks."""
_KEYS = 250
"""And at how many keys: each costs more."""
SOON = timedelta(seconds=2)
"""A note that is due within this time will have its key looked at; room that is kept for longer is kept in vain."""
_EVER = timedelta(days=36_500)
"""A tick reads notes however late they are."""


@dataclass(frozen=True, kw_only=True)
class Stranded:
    """How many lanes and keys no trip would have looked at, and where the next look goes on."""

    count: int
    last_lane: int
    last_key: int


@dataclass(frozen=True, kw_only=True)
class Freed:
    """How many slots were freed, and where the next run continues."""

    slots: int
    last: int


def judged_until(*, now: datetime | None = None) -> datetime | None:
    """Note that the leases are looked at; return the time by which one must have been over to be judged, if any may be.

    Leases are judged as they were at that time, however long the statements that judge them wait for a lock.
    """
    settings = conf()
    wait = 2 * settings.heartbeat
    # A lease that was renewed in time does not expire within `gap`.
    gap = max(min(3 * settings.recover_every, settings.run_lease - settings.heartbeat), wait)
    (until,) = sql.fetch("check_leases", datetime, {"gap": gap, "wait": wait, "now": now})
    return until


def expired(*, now: datetime | None = None) -> list[InFlight]:
    """Lock and return calls whose lease ran out; the caller holds a transaction open until they are put right."""
    settings = conf()
    params = {"now": now, "most": settings.batch, "slack": settings.heartbeat, "serves_http": registered().serves_http}
    return sql.fetch("lock_expired", InFlight, params)


def free_orphans(slots: Collection[int] | None = None, *, after: int = 0, now: datetime | None = None) -> Freed:
    """Delete slots without a call in flight, of these or of the next few thousand after one; a batch at the most.

    The next trip reads the notes for their keys.
    """
    named = None if slots is None else list(slots)
    bounds = {"after": after, "looked_at": _SLOTS, "most": conf().batch}
    with sql.together():
        asked = sql.ask("free_orphans", Freed, {"slots": named, **bounds, "now": now})
    return asked.row()


def unserved(*, now: datetime | None = None) -> list[InFlight]:
    """Lock and return calls on the way to workers that are not there; the caller puts them back before it commits."""
    grace = queue_grace()
    if grace is None:
        return []
    return sql.fetch("lock_unserved", InFlight, {"now": now, "most": conf().batch, "grace": grace})


def ask_stranded(*, after_lane: int = 0, after_key: int = 0) -> sql.Asked[Stranded]:
    """Ask for lanes and keys that no trip would look at, among the next ones after these, and leave notes for them."""
    params = {
        "lane": after_lane,
        "most_lanes": _LANES,
        "key": after_key,
        "most_keys": _KEYS,
        "soon": SOON,
        "late": _EVER,
        **counting(),
        "needs_worker": needs_worker(),
        "ahead": conf().dispatch_ahead,
        "now": None,
    }
    return sql.ask("note_stranded", Stranded, params)
