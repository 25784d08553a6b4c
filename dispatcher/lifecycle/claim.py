"""Claim: win the right to run one attempt, proven by the ticket. This is the start."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from time import monotonic, sleep
from typing import Any, ClassVar, Final
from uuid import UUID, uuid4

from dispatcher import sql
from dispatcher.conf import conf, is_eager
from dispatcher.lifecycle.take import Taker, lead, tuning


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """The attempt is this worker's: it is number `attempt`, and starts at `start_at` by the database's clock."""

    claim_id: UUID
    """The claim's own."""
    attempt: int
    start_at: datetime
    retry: Mapping[str, Any] | None
    """The call's own retry policy."""
    queue: str = ""
    is_paced: bool = False
    """A throttle gave the start: it must be kept to the millisecond."""
    is_counted: bool = False
    """A window counts the start: it must be kept within its margin."""
    slack: timedelta = timedelta(0)
    """How much later than that it may start: what its limits allow for was moved as far."""

    @property
    def lateness(self) -> timedelta:
        """How late it may start; a call that is later has missed its start, and must wait again.

        A process that was frozen for as long as a lease must not start what may be another's by now.
        """
        settings = conf()
        longest = max(settings.run_lease, settings.margin) / 2
        if self.is_paced:
            return min(_LATE + self.slack, longest)
        return min(settings.margin / 2 + self.slack, longest) if self.is_counted else longest


class Refused(Enum):
    """Why a claim was not granted."""

    STALE = "stale"
    """The ticket was used or replaced: a late or duplicate delivery."""
    KEY_CLOSED = "closed"
    """A key was paused or blocked since the take."""
    EXPIRED = "expired"
    """The call did not start in time."""
    TOO_EARLY = "early"
    """Its start lies beyond the horizon: the throttle was changed since the take, or starts were missed."""
    INTERRUPTED = "interrupted"
    """A soft time limit came before the start."""
    BUSY = "busy"
    """Another transaction keeps the call or a key locked that was to give the start."""
    REVOKED = "revoked"
    """The call was revoked while an earlier attempt ran."""
    MISSED = "missed"
    """The process came later than the start that it was given."""


@dataclass(frozen=True, kw_only=True)
class _Answer:
    start_at: datetime | None
    refused: str | None
    attempt: int | None
    retry: dict[str, Any] | None
    queue: str | None
    is_paced: bool | None
    is_counted: bool | None
    at: datetime


class _Pace:
    """How much later than asked this process begins, at the most: it grows with a start that was missed."""

    slack: ClassVar[timedelta] = timedelta(0)


_ENOUGH = 5
"""Answers from which the database's clock is known well enough."""
_OVERSLEEP_S = 0.004
"""How much longer than asked a sleep may take; the last bit is slept in short naps."""
_NAP_S = 0.0002
_EASE = 0.98
"""What is kept of the slack of a process with each start that it keeps."""
_LATE = timedelta(milliseconds=2)
"""How late a throttled call may start at first."""
_COLD = timedelta(milliseconds=150)
"""How much longer the first start of a connection takes at the most: the server plans its statements then."""
LOCK_WAIT: Final = timedelta(milliseconds=500)
"""For how long a claim tries to get a row that is locked, 20 ms each time: longer than trips hold a busy key."""
_BEYOND = timedelta(milliseconds=100)
"""How far beyond horizon and lead a start may be: missed starts, and calls of several throttles, delay the next."""


def claim(
    call_id: UUID,
    ticket: UUID,
    *,
    claim_id: UUID | None = None,
    worker: UUID | None = None,
    delay: timedelta = timedelta(0),
) -> Claimed | Refused:
    """Claim a call for its ticket; a refusal changes nothing.

    claim_id: the claim's own; one whose answer was lost gets its start again, with the same delay. worker: who claims.
    delay: see `slack`. A start beyond the horizon is not granted: a process of the pool never sleeps for longer.
    """
    taker = Taker(worker=worker, delay=delay)
    return _claim(call_id, ticket, claim_id or uuid4(), taker, conf().horizon + lead(taker, eager=is_eager()) + _BEYOND)


def restore(call_id: UUID, ticket: UUID, *, claim_id: UUID | None = None) -> Claimed | None:
    """Record the claim of an attempt that is over, and that a crash of the database has lost; None if it has not.

    It counts as a start by now.
    """
    claimed = _claim(call_id, ticket, claim_id, Taker(), None)
    return claimed if isinstance(claimed, Claimed) else None


def _claim(
    call_id: UUID, ticket: UUID, claim_id: UUID | None, taker: Taker, most_ahead: timedelta | None
) -> Claimed | Refused:
    params = {"call": call_id, "ticket": ticket, "claim": claim_id, "worker": taker.worker, "most_ahead": most_ahead}
    until = monotonic() + LOCK_WAIT.total_seconds()
    while True:
        sample()
        asked_at = monotonic()
        answers = sql.fetch_checked("claim_call", _Answer, {**params, "tuning": tuning(taker)})
        if not answers:
            return Refused.STALE
        (answer,) = answers
        observe(answer.at, asked_at)
        if answer.start_at is not None and answer.attempt is not None:
            return Claimed(
                claim_id=claim_id or ticket,
                attempt=answer.attempt,
                start_at=answer.start_at,
                retry=answer.retry,
                queue=answer.queue or "",
                is_paced=bool(answer.is_paced),
                is_counted=bool(answer.is_counted),
                slack=taker.delay,
            )
        # In a caller's transaction a row that it keeps locked stays so.
        if (refused := Refused(answer.refused)) is not Refused.BUSY or monotonic() > until:
            return refused


# The database's clock, as this process sees it


_offsets: deque[float] = deque(maxlen=50)
"""Seconds from the database's clock to the monotonic one, by the last answers.

Every answer is a sample, late by its latency. The least late one counts (the minimum filter of NTP, RFC 5905 section
10), so a slow answer does not delay a start. An answer can't be later than the time since its question: one that seems
to be shows that the database's clock was set back, and the others count no more.
"""


def sample() -> None:
    """Ask the time until one late answer no longer matters; it also opens the connection before the first start."""
    # Not until there are enough: a clock that is set back again and again would never give them.
    for _ in range(_ENOUGH - len(_offsets)):
        asked_at = monotonic()
        observe(sql.now(), asked_at)


def observe(database_time: datetime, asked_at: float) -> None:
    """Learn from an answer; `asked_at`: the monotonic time of its question."""
    least = asked_at - database_time.timestamp()
    if any(offset < least for offset in tuple(_offsets)):
        _offsets.clear()
    _offsets.append(monotonic() - database_time.timestamp())


def monotonic_of(at: datetime) -> float:
    """Return the monotonic time of this machine at a time by the database's clock."""
    sample()
    return min(tuple(_offsets)) + at.timestamp()


# Starts that are kept


def slack(*, is_cold: bool = False) -> timedelta:
    """Return how much later than asked this process begins, at the most: a taker's `delay`.

    is_cold: by a connection that has started nothing yet.
    """
    return _Pace.slack + _COLD if is_cold else _Pace.slack


def is_in_time(claimed: Claimed) -> bool:
    """Wait until the call's start; return False if it was missed, and the call must wait again.

    The next claims of this process are given twice the time then: where it is always late, calls start all the same.
    """
    is_kept = is_in_time_at(monotonic_of(claimed.start_at), claimed.lateness.total_seconds())
    if is_kept:
        _Pace.slack *= _EASE
    elif claimed.is_paced or claimed.is_counted:
        _Pace.slack = max(_Pace.slack, claimed.lateness + claimed.slack)
    return is_kept


def is_in_time_at(due: float, lateness: float) -> bool:
    """Wait until this monotonic time; return whether it has passed by no more than the lateness, in seconds."""
    if (ahead := due - monotonic() - _OVERSLEEP_S) > 0:
        # A sleep of 0 s is a sleep, too.
        sleep(ahead)
    while monotonic() < due:
        sleep(_NAP_S)
    return monotonic() - due <= lateness
