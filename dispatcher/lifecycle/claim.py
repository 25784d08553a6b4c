"""Claim: win the right to run one attempt, proven by the ticket. This is the start."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Any
from uuid import UUID

from dispatcher import sql
from dispatcher.conf import conf
from dispatcher.policy import BUCKETS


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """The attempt is this worker's: it is number `attempt`, and starts after `wait`."""

    attempt: int
    wait: timedelta
    retry: Mapping[str, Any] | None
    """The call's own retry policy."""


class Refused(Enum):
    """Why a claim was not granted."""

    STALE = auto()
    """The ticket was used or replaced: a late or duplicate delivery."""
    CLOSED = auto()
    """A key was paused or blocked since the admission."""
    EXPIRED = auto()
    """The call did not start in time."""


@dataclass(frozen=True, kw_only=True)
class _Verdict:
    is_closed: bool
    is_expired: bool
    now: datetime
    start_at: datetime
    attempt: int | None
    retry: Mapping[str, Any] | None
    commit: str


def claim(call_id: UUID, ticket: UUID, *, now: datetime | None = None) -> Claimed | Refused:
    """Claim a call for its ticket; a refusal changes nothing."""
    rows = sql.fetch(
        "claim_call",
        _Verdict,
        {"call": call_id, "ticket": ticket, "lease": conf().run_lease, "buckets": BUCKETS, "now": now},
    )
    match rows:
        case []:
            return Refused.STALE
        case [verdict] if verdict.attempt is not None:
            return Claimed(attempt=verdict.attempt, wait=verdict.start_at - verdict.now, retry=verdict.retry)
        case [verdict] if verdict.is_expired:
            return Refused.EXPIRED
        case _:
            return Refused.CLOSED


def renew(held: Sequence[tuple[UUID, UUID]], *, now: datetime | None = None) -> int:
    """Renew the leases of these (call, ticket) pairs in one statement; return how many slots were renewed."""
    if not held:
        return 0
    calls, tickets = zip(*held, strict=True)
    params = {"calls": list(calls), "tickets": list(tickets), "lease": conf().run_lease, "now": now}
    return sql.change("renew_leases", params)
