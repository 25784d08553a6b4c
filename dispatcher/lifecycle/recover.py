"""Recover: find what a dead process or a lost message left behind."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from dispatcher import sql
from dispatcher.conf import conf, queue_grace


@dataclass(frozen=True, kw_only=True)
class Left:
    """A call that nobody is going to finish; its row is locked."""

    call_id: UUID
    ticket: UUID


@dataclass(frozen=True, kw_only=True)
class Overdue(Left):
    """A fetched call whose lease ran out; `is_timeout`: its attempt has used up the time that it has."""

    is_timeout: bool


@dataclass(frozen=True, kw_only=True)
class Swept:
    """Lanes or keys that nobody would have served, and where the next sweep goes on."""

    forgotten: list[int]
    last: int


@dataclass(frozen=True, kw_only=True)
class _Watch:
    is_sure: bool


def can_judge() -> bool:
    """Note that the leases are looked at; return whether they can be judged.

    Where nobody has looked for a while, the database may have been away, and the heartbeats with it: the workers
    then get the time of two heartbeats to speak up.
    """
    settings = conf()
    gap = max(3 * settings.recover_every, settings.heartbeat)
    (watch,) = sql.fetch("watch_leases", _Watch, {"gap": gap, "wait": 2 * settings.heartbeat})
    return watch.is_sure


def expired(*, now: datetime | None = None) -> list[Left]:
    """Lock and return calls whose lease ran out; the caller holds a transaction open until they are put right."""
    settings = conf()
    params = {"now": now, "most": settings.batch, "slack": settings.heartbeat}
    rows = sql.fetch("lock_expired", Left, params)
    return list({row.call_id: row for row in rows}.values())


def overdue(*, now: datetime | None = None) -> list[Overdue]:
    """Lock and return calls that were fetched over HTTP and whose lease ran out; the caller ends their attempts."""
    rows = sql.fetch("lock_overdue", Overdue, {"now": now, "most": conf().batch})
    return list({row.call_id: row for row in rows}.values())


def unserved(*, now: datetime | None = None) -> list[Left]:
    """Lock and return calls on the way to workers that are not there; the caller puts them back before it commits."""
    grace = queue_grace()
    if grace is None:
        return []
    return sql.fetch("lock_unserved", Left, {"now": now, "most": conf().batch, "grace": grace})


def sweep_lanes(after: int, most: int) -> Swept:
    """Look for lanes with waiting calls that sleep, among the next `most` lanes with calls after this one."""
    return _swept("sweep_lanes", after, most)


def sweep_keys(after: int, most: int) -> Swept:
    """Look for keys with room that lanes are parked on, among the next `most` keys with such lanes after this one."""
    return _swept("sweep_keys", after, most)


def _swept(statement: str, after: int, most: int) -> Swept:
    with sql.together():
        asked = sql.ask(statement, Swept, {"after": after, "most": most})
    return asked.row()


def wake(lanes: Iterable[int]) -> int:
    """Wake these lanes for the next pass; return how many were asleep."""
    return sql.change("wake_lanes", {"lanes": list(lanes)})


def leave(lanes: Collection[int], keys: Collection[int]) -> None:
    """Leave lanes and keys to the next pass that comes along."""
    if lanes:
        wake(lanes)
    if keys:
        sql.change("leave_open", {"keys": list(keys), "now": None})
