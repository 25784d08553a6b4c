"""Claim: win the right to run one attempt, proven by the ticket. This is the start."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto
from time import monotonic, sleep
from typing import Any, Final
from uuid import UUID, uuid4

from django.db import OperationalError

from dispatcher import lanes, sql
from dispatcher.conf import conf
from dispatcher.limits.policy import BUCKETS
from dispatcher.states import State


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """The attempt is this worker's: it is number `attempt`, and starts at `start_at` by the database's clock."""

    claim_id: UUID
    """The claim's own."""
    attempt: int
    start_at: datetime
    retry: Mapping[str, Any] | None
    """The call's own retry policy."""
    is_paced: bool = False
    """A throttle gave the start: it must be kept to the millisecond."""
    is_counted: bool = False
    """A window counts the start: it must be kept within its margin."""
    slack: timedelta = timedelta(0)
    """How much later than that it may start: what its limits allow for was moved as far."""

    @property
    def lateness(self) -> timedelta:
        """How late it may start without asking for another start.

        A process that was frozen for as long as a lease must not start what may be another's by now.
        """
        settings = conf()
        longest = max(settings.run_lease, settings.margin) / 2
        if self.is_paced:
            return min(_LATE + self.slack, longest)
        return min(settings.margin / 2 + self.slack, longest) if self.is_counted else longest


class Refused(Enum):
    """Why a claim was not granted."""

    STALE = auto()
    """The ticket was used or replaced: a late or duplicate delivery."""
    KEY_CLOSED = auto()
    """A key was paused or blocked since the admission, or has forgotten the start that was missed."""
    EXPIRED = auto()
    """The call did not start in time."""
    TOO_EARLY = auto()
    """Its start lies beyond the horizon: the throttle was changed since the admission, or starts were missed."""
    INTERRUPTED = auto()
    """A soft time limit came before the start."""
    BUSY = auto()
    """Another transaction keeps a key locked that was to give the start."""
    REVOKED = auto()
    """The call was revoked while an earlier attempt ran."""


@dataclass(frozen=True, kw_only=True)
class _Verdict:
    is_closed: bool
    is_expired: bool
    is_early: bool
    is_revoked: bool
    database_time: datetime
    start_at: datetime
    attempt: int | None
    retry: Mapping[str, Any] | None
    is_paced: bool
    is_counted: bool
    commit: str | None


class _DatabaseClock:
    """The database's clock, as this process sees it.

    Every answer of a claim is a sample, late by its latency. The least late of the last samples counts (the minimum
    filter of NTP, RFC 5905 section 10), so a slow answer does not delay a start. An answer can't be later than the time
    since its question: one that seems to be shows that the database's clock was set back, and the others count no more.
    """

    offsets: deque[float] = deque(maxlen=50)
    """Seconds from the database's clock to the monotonic one."""

    @classmethod
    def sample(cls) -> None:
        """Ask the time until one late answer no longer matters; it also opens the connection before the first start."""
        # Not until there are enough: a clock that is set back again and again would never give them.
        for _ in range(_ENOUGH - len(cls.offsets)):
            asked_at = monotonic()
            cls.observe(sql.now(), asked_at)

    @classmethod
    def observe(cls, database_time: datetime, asked_at: float) -> None:
        """Learn from an answer; `asked_at`: the monotonic time of its question."""
        least = asked_at - database_time.timestamp()
        if any(offset < least for offset in tuple(cls.offsets)):
            cls.offsets.clear()
        cls.offsets.append(monotonic() - database_time.timestamp())

    @classmethod
    def monotonic_of(cls, at: datetime) -> float:
        return min(tuple(cls.offsets)) + at.timestamp()


_ENOUGH = 5
"""Answers from which the database's clock is known well enough."""
_OVERSLEEP_S = 0.004
"""How much longer than asked a sleep may take; the last bit is slept in short naps."""
_NAP_S = 0.0002
_LATE = timedelta(milliseconds=2)
"""How late a throttled call may start at first."""
LOCK_WAIT: Final = timedelta(milliseconds=500)
"""How long a claim waits for a key that is locked: longer than claims and passes hold a busy one, and less than
PostgreSQL's deadlock_timeout. It holds its call, which a transaction that holds the key may cancel."""
_BEYOND = timedelta(milliseconds=100)
"""How far beyond horizon and lead a start may be: missed starts, and calls of several throttles, delay the next."""


def claim(
    call_id: UUID,
    ticket: UUID,
    *,
    claim_id: UUID | None = None,
    worker: UUID | None = None,
    lead: timedelta | None = None,
    now: datetime | None = None,
) -> Claimed | Refused:
    """Claim a call for its ticket; a refusal changes nothing.

    claim_id: the claim's own; worker: who claims. lead: how far ahead a throttled start is at the least. A start beyond
    the horizon is not granted: a process of the pool never sleeps for longer.
    """
    return _start("claim_call", call_id, ticket, claim_id=claim_id or uuid4(), worker=worker, lead=lead, now=now)


def restart(
    call_id: UUID,
    ticket: UUID,
    *,
    claim_id: UUID,
    worker: UUID | None = None,
    slack: timedelta = timedelta(0),
    missed: timedelta = timedelta(0),
    lead: timedelta | None = None,
    now: datetime | None = None,
) -> Claimed | Refused:
    """Give the claim that won another start, since it missed the first one or lost the answer.

    slack: how much later than its start it may come then, see Claimed; missed: the slack of the start that was missed.
    """
    late = {"slack": slack, "missed": missed}
    return _start("restart_call", call_id, ticket, claim_id=claim_id, worker=worker, lead=lead, now=now, **late)


def _start(
    name: str,
    call_id: UUID,
    ticket: UUID,
    *,
    claim_id: UUID,
    worker: UUID | None,
    lead: timedelta | None,
    now: datetime | None,
    slack: timedelta = timedelta(0),
    missed: timedelta = timedelta(0),
) -> Claimed | Refused:
    settings = conf()
    least = settings.lead if lead is None else lead
    _DatabaseClock.sample()
    asked_at = monotonic()
    params = {
        # Within a caller's transaction the bound would outlast the claim.
        "lock_wait": None if sql.in_transaction() else LOCK_WAIT // timedelta(milliseconds=1),
        "call": call_id,
        "ticket": ticket,
        "claim": claim_id,
        "worker": worker,
        "lease": settings.run_lease,
        "lead": least,
        "ahead": settings.horizon + least + _BEYOND,
        "buckets": BUCKETS,
        "margin": settings.margin,
        "slack": slack,
        "missed": missed,
        "is_durable": settings.durable_claims,
        "now": now,
    }
    try:
        rows = sql.fetch(name, _Verdict, params)
    except OperationalError as fault:
        if not lanes.is_lock_timeout(fault):
            raise
        return Refused.BUSY
    for verdict in rows:
        _DatabaseClock.observe(verdict.database_time, asked_at)
    if not rows:
        return Refused.STALE
    (verdict,) = rows
    if verdict.attempt is None:
        return _refusal(verdict)
    return Claimed(
        claim_id=claim_id,
        attempt=verdict.attempt,
        start_at=verdict.start_at,
        retry=verdict.retry,
        is_paced=verdict.is_paced,
        is_counted=verdict.is_counted,
        slack=slack,
    )


@dataclass(frozen=True, kw_only=True)
class Started:
    """A call that was started as it was admitted: its attempt, and the call's own retry policy."""

    id: UUID
    attempt: int
    retry: Mapping[str, Any] | None
    start_at: datetime
    is_counted: bool


def start_many(calls: Mapping[UUID, UUID], *, worker: UUID, slack: timedelta) -> list[Started]:
    """Start calls that the caller has admitted in this transaction, each by the claim with its id.

    slack: how much later than its start a call may begin.

    Left out are those that were revoked, and those under a throttle: `claim` gives their start.
    """
    settings = conf()
    params = {
        "calls": list(calls),
        "claims": list(calls.values()),
        "worker": worker,
        "lease": settings.run_lease,
        "margin": settings.margin,
        "buckets": BUCKETS,
        "slack": slack,
        "admitted": State.DISPATCHED.value,
        "now": None,
    }
    return sql.fetch("start_calls", Started, params)


def observe(database_time: datetime, asked_at: float) -> None:
    """Learn the database's clock from an answer to a question of this monotonic time."""
    _DatabaseClock.observe(database_time, asked_at)


def monotonic_of(at: datetime) -> float:
    """Return the monotonic time of this machine at a time by the database's clock."""
    _DatabaseClock.sample()
    return _DatabaseClock.monotonic_of(at)


def _refusal(verdict: _Verdict) -> Refused:
    if verdict.is_revoked:
        return Refused.REVOKED
    if verdict.is_expired:
        return Refused.EXPIRED
    return Refused.TOO_EARLY if verdict.is_early and not verdict.is_closed else Refused.KEY_CLOSED


def is_in_time(claimed: Claimed) -> bool:
    """Wait until the call's start; return False if it was missed, and the claim needs another start."""
    return is_in_time_at(_DatabaseClock.monotonic_of(claimed.start_at), claimed.lateness.total_seconds())


def is_in_time_at(due: float, lateness: float) -> bool:
    """Wait until this monotonic time; return whether it has passed by no more than the lateness, in seconds."""
    if (ahead := due - monotonic() - _OVERSLEEP_S) > 0:
        # A sleep of 0 s is a sleep, too.
        sleep(ahead)
    while monotonic() < due:
        sleep(_NAP_S)
    return monotonic() - due <= lateness
