"""Recover: find what a dead process or a lost message left behind."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from dispatcher import sql
from dispatcher.conf import conf


@dataclass(frozen=True, kw_only=True)
class Expired:
    """A call whose lease ran out; its row and slots are locked."""

    call_id: UUID
    ticket: UUID
    state: str
    attempt: int
    retry: Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class Swept:
    """Lanes or keys that nobody would have served, and where the next sweep goes on."""

    forgotten: list[int]
    last: int


def expired(*, now: datetime | None = None) -> list[Expired]:
    """Lock and return calls whose lease ran out; the caller holds a transaction open until they are put right."""
    rows = sql.fetch("lock_expired", Expired, {"now": now, "most": conf().batch})
    return list({row.call_id: row for row in rows}.values())


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
