"""Recover: find calls and slots that a dead process or a lost message left behind."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from dispatcher import sql
from dispatcher.conf import conf, queue_grace
from dispatcher.extension import registered

_SLOTS = 5_000
"""How many slots one recovery reads."""


@dataclass(frozen=True, kw_only=True)
class ExpiredLease:
    """A call whose lease expired; its row is locked."""

    call_id: UUID
    ticket: UUID


@dataclass(frozen=True, kw_only=True)
class Swept:
    """Lanes or keys that no pass would have served, and where the next sweep continues."""

    stranded: list[int]
    last: int


@dataclass(frozen=True, kw_only=True)
class Freed:
    """The key of each freed slot (None: it had no key), and where the next run continues."""

    keys: list[int | None]
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


def expired(*, now: datetime | None = None) -> list[ExpiredLease]:
    """Lock and return calls whose lease ran out; the caller holds a transaction open until they are put right."""
    settings = conf()
    params = {"now": now, "most": settings.batch, "slack": settings.heartbeat, "serves_http": registered().serves_http}
    rows = sql.fetch("lock_expired", ExpiredLease, params)
    return list({row.call_id: row for row in rows}.values())


def free_orphans(slots: Collection[int] | None = None, *, after: int = 0, now: datetime | None = None) -> Freed:
    """Delete slots without a call in flight, of these or of the next few thousand after one; a batch at the most."""
    named = None if slots is None else list(slots)
    bounds = {"after": after, "looked_at": _SLOTS, "most": conf().batch}
    with sql.together():
        asked = sql.ask("free_orphans", Freed, {"slots": named, **bounds, "now": now})
    return asked.row()


def unserved(*, now: datetime | None = None) -> list[ExpiredLease]:
    """Lock and return calls on the way to workers that are not there; the caller puts them back before it commits."""
    grace = queue_grace()
    if grace is None:
        return []
    return sql.fetch("lock_unserved", ExpiredLease, {"now": now, "most": conf().batch, "grace": grace})


def ask_sweep_lanes(after: int, most: int) -> sql.Asked[Swept]:
    """Ask for lanes that sleep over waiting calls, among `most` lanes after this one."""
    return sql.ask("sweep_lanes", Swept, {"after": after, "most": most})


def ask_sweep_keys(after: int, most: int) -> sql.Asked[Swept]:
    """Ask for keys with room that lanes are parked on, among `most` keys after this one."""
    return sql.ask("sweep_keys", Swept, {"after": after, "most": most})


def wake(lanes: Iterable[int]) -> int:
    """Wake these lanes for the next pass; return how many were asleep."""
    return sql.change("wake_lanes", {"lanes": list(lanes)})


def defer(lanes: Collection[int], keys: Collection[int]) -> list[int]:
    """Leave lanes and keys to the next pass; return the lanes that are awake for it."""
    if lanes:
        wake(lanes)
    woken = sql.fetch("defer_keys", int, {"keys": list(keys), "now": None}) if keys else []
    return [*lanes, *woken]


def defer_lanes(lanes: Collection[int]) -> int:
    """Leave lanes that wait for a locked key to the next pass, parked or not; return how many were not awake."""
    return sql.change("defer_lanes", {"lanes": list(lanes)})
