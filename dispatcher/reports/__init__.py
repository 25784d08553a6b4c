"""Reports: how each key stands, which calls hold it or wait for it, why a call waits. They change nothing."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, ClassVar, Final, NamedTuple
from uuid import UUID

import arrow
from arrow.locales import EnglishLocale

from dispatcher import sql
from dispatcher.conf import conf
from dispatcher.limits.policy import (
    AdmissionTuning,
    Policy,
    Use,
    counted,
    in_force,
    next_opening,
    next_start,
    ramp_opening,
    room,
    stored,
    throttle_room,
)
from dispatcher.limits.usage import KeyRow

MANY: Final = 10_000
"""How far calls ahead of another are counted."""


_EXACT = 10
"""Spans below this many seconds are shown exactly."""


OLD_TRANSACTION: Final = timedelta(minutes=1)
"""The age from which an open transaction is reported: what died since can't be cleaned up, and each call costs more."""
_FEW = 10


class KeyState(StrEnum):
    """What a key lets happen; where several hold, the first of these."""

    PAUSED = "paused"
    BLOCKED = "blocked"
    AT_LIMIT = "at_limit"
    OPEN = "open"

    @property
    def label(self) -> str:
        """The words that people see."""
        return self.value.capitalize().replace("_", " ")


@dataclass(frozen=True, kw_only=True)
class KeyStatus:
    """One key at one moment by the database's clock. All amounts but `waiting` are costs."""

    id: int
    name: str
    at: datetime
    policy: Policy
    """The limits in force: the override's while there is one."""
    own_policy: Policy
    """The limits that hold without an override."""
    overridden_until: datetime | None
    is_paused: bool
    blocked_until: datetime | None
    running: int
    """Slots of calls that have started."""
    admitted: int
    """Slots of calls that are on their way to a worker."""
    starts: int
    """What started in the window and still counts."""
    frees_at: datetime | None
    """When the first of the starts ceases to count."""
    resets_at: datetime | None
    """When the last of them does."""
    next_start_at: datetime | None
    """The first moment at which the throttle lets one more call start; None without a throttle."""
    stopped_by: Sequence[str]
    """What leaves no room for a call of cost 1: concurrency, rate, throttle, and the ramp after a block."""
    opens_at: datetime | None
    """When time alone lets the next call in; None if it does now, or if it takes a release or a person."""
    waiting: int
    """How many calls wait."""
    waiting_since: datetime | None
    """Since when the first in line waits."""
    oversized: int = 0
    """How many of those cost more than the limits in force ever allow: they wait alone until the limits change."""

    @property
    def in_flight(self) -> int:
        """What is held of it, from the admission to the finish."""
        return self.running + self.admitted

    @property
    def used(self) -> int:
        """What counts against the window's limit: starts, and what is admitted and will start."""
        return self.starts + self.admitted

    @property
    def state(self) -> KeyState:
        """What it lets happen."""
        if self.is_paused:
            return KeyState.PAUSED
        if self.blocked_until is not None:
            return KeyState.BLOCKED
        return KeyState.AT_LIMIT if self.stopped_by else KeyState.OPEN

    def as_json(self) -> dict[str, Any]:
        """Write it as the Open Job Spec does (rate limiting, section 10.1), with what more is known."""
        return {
            "key": self.name,
            "state": self.state.value,
            "stopped_by": list(self.stopped_by),
            "concurrency": self._concurrency(),
            "rate": self.policy.rate
            and {
                **self.policy.rate.as_json(),
                "current_count": self.used,
                "frees_at": _json_time(self.frees_at),
                "window_resets_at": _json_time(self.resets_at),
            },
            "throttle": self.policy.throttle
            and {**self.policy.throttle.as_json(), "next_allowed_at": _json_time(self.next_start_at)},
            "running": self.running,
            "admitted": self.admitted,
            "waiting_count": self.waiting,
            "waiting_since": _json_time(self.waiting_since),
            "oversized_count": self.oversized,
            "opens_at": _json_time(self.opens_at),
            "paused": self.is_paused,
            "blocked_until": _json_time(self.blocked_until),
            "override": self.overridden_until
            and {"expires_at": _json_time(self.overridden_until), "own_limits": self.own_policy.as_json()},
        }

    def _concurrency(self) -> dict[str, int] | None:
        limit = self.policy.concurrency
        if limit is None:
            return None
        return {"limit": limit, "active": self.in_flight, "available": max(0, limit - self.in_flight)}


class Place(NamedTuple):
    """A call's place among all that wait for a key: higher priority first, then in order of sending."""

    priority: int
    position: int
    lane_id: int


@dataclass(frozen=True, kw_only=True)
class KeyCall:
    """A call that holds a key or waits for it, what it costs, and since when it does; lane 0: it has none yet."""

    id: UUID
    task: str
    state: str
    queue: str
    priority: int
    position: int
    lane_id: int
    attempt: int
    cost: int
    created_at: datetime
    since: datetime

    @property
    def place(self) -> Place:
        """Where the next page of waiting calls goes on."""
        return Place(self.priority, self.position, self.lane_id)


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Why a call waits: the key or queue that stopped its lane, if one did, and how many of the lane go before it."""

    oversized_for: str | None
    """The key whose limits in force never allow its cost: the call waits alone, and its lane goes on."""
    oversized_cost: int | None
    """What it costs of that key."""
    stopped_by: str | None
    held_by: str | None
    """The queue, if it holds the lane: no worker serves it, or enough of its calls are dispatched."""
    is_served: bool
    """Whether a live worker serves the call's queue."""
    queue: str
    task: str
    is_known: bool
    """Whether a live worker of the queue knows the task, as far as the workers have registered their tasks."""
    returns: int
    """How often in a row it was published and came back without a start."""
    until: datetime | None
    """When a call that came back is tried again, unless a worker that knows its task comes before."""
    since: datetime
    is_placed: bool
    """Whether it has a lane; else its keys or its lane are still to be made."""
    is_awake: bool
    ahead: int
    """Counted up to MANY."""
    at: datetime


@dataclass(frozen=True, kw_only=True)
class Unserved:
    """A queue whose calls wait because no live worker serves it."""

    name: str
    waiting: int
    """Counted up to MANY."""
    seen_at: datetime | None
    """When a worker of it was last seen."""

    def as_json(self) -> dict[str, Any]:
        """Write it for other programs."""
        return {"name": self.name, "waiting_count": self.waiting, "worker_seen_at": _json_time(self.seen_at)}


@dataclass(frozen=True, kw_only=True)
class Unstarted:
    """A task whose calls wait in a queue since they were published and came back without a start."""

    queue: str
    task: str
    waiting: int
    """Counted up to MANY, of all tasks together."""
    returns: int
    """How often in a row one of them came back, at the most."""
    is_known: bool
    """Whether a live worker of the queue knows the task."""

    def as_json(self) -> dict[str, Any]:
        """Write it for other programs."""
        return {
            "queue": self.queue,
            "task": self.task,
            "waiting_count": self.waiting,
            "returns": self.returns,
            "known": self.is_known,
        }


@dataclass(frozen=True, kw_only=True)
class OldTransaction:
    """A transaction that has been open for long, in the dispatcher's database."""

    what: str
    """The session, by the process of the server, or the prepared transaction."""
    facts: Mapping[str, Any]
    """How long it is `open_for`, as hh:mm:ss, the session's `application`, `state` and latest `query`."""
    target: str
    version: str
    total: int

    def as_json(self) -> dict[str, Any]:
        """Write it for other programs."""
        return {"what": self.what, **self.facts}


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a call costs of a key."""

    name: str
    cost: int


@dataclass(frozen=True, kw_only=True)
class _KeyRow(KeyRow):
    now: datetime
    waiting: int
    waiting_since: datetime | None
    oversized: int


def rate_limit_status(keys: Collection[str] | None = None, *, now: datetime | None = None) -> list[KeyStatus]:
    """Return how these keys stand, or all if None, in order of name; names that do not exist are left out.

    One statement, whatever the number of keys; limits and use are reckoned as the admission does.
    """
    names = None if keys is None else list(keys)
    settings = conf()
    rows = sql.fetch("report_keys", _KeyRow, {"names": names, "now": now, "margin": settings.margin})
    tuning = AdmissionTuning(horizon=settings.horizon, margin=settings.margin, ramp=settings.ramp)
    return [_status(row, tuning) for row in rows]


def waiting_calls(name: str, *, after: Place | None = None, most: int = 100) -> list[KeyCall]:
    """Return the calls that wait for a key, the first in line first, after the place where a page ended.

    Lanes of one priority take turns, so between lanes the order of admission may differ.
    """
    priority, position, lane = after or (None, None, None)
    params = {"name": name, "priority": priority, "position": position, "lane": lane, "most": most}
    return sql.fetch("report_waiting", KeyCall, params)


def calls_in_flight(name: str, *, after: UUID | None = None, most: int = 100) -> list[KeyCall]:
    """Return the calls that hold slots of a key, in order of id, after the one where the last page ended."""
    return sql.fetch("report_in_flight", KeyCall, {"name": name, "after": after, "most": most})


def costs(call: UUID) -> list[Cost]:
    """Return the keys that a call spends, its queue's own included, and what it costs of each."""
    return sql.fetch("report_costs", Cost, {"call": call})


def why_waiting(call: UUID, *, now: datetime | None = None) -> Wait | None:
    """Return why a call waits; None if it does not wait."""
    found = sql.fetch("report_wait", Wait, {"call": call, "most": MANY, "now": now})
    return found[0] if found else None


def unserved_queues(*, now: datetime | None = None) -> list[Unserved]:
    """Return the queues whose calls wait because no live worker serves them, in order of name."""
    return sql.fetch("report_unserved", Unserved, {"most": MANY, "now": now})


def unstarted_tasks(*, now: datetime | None = None) -> list[Unstarted]:
    """Return the tasks whose calls came back without a start and wait, in order of queue and name."""
    return sql.fetch("report_unstarted", Unstarted, {"most": MANY, "now": now})


def old_transactions(*, age: timedelta | None = None) -> list[OldTransaction]:
    """Return up to 10 transactions that have been open for longer than this (a minute), the oldest first.

    Those of other users are seen by roles that may read all statistics only (pg_read_all_stats).
    """
    long = OLD_TRANSACTION if age is None else age
    return sql.fetch("audit_old_transaction", OldTransaction, {"long": long, "most": _FEW})


def _status(row: _KeyRow, tuning: AdmissionTuning) -> KeyStatus:
    now, policy = row.now, in_force(row, row.now)
    use = Use(
        held=row.held,
        unstarted=row.unstarted,
        starts=tuple(zip(row.start_at, row.start_cost, strict=True)),
        next_start_at=next_start(policy, row.last_start_at, row.last_cost),
    )
    spent = counted(policy.rate, use, now, tuning) if policy.rate else []
    ramp_opens_at = ramp_opening(row.blocked_until, use, 1, now, tuning)
    stopped_by = (*_stopping(policy, use, now, tuning), *(["ramp"] if ramp_opens_at else []))
    blocked_until = row.blocked_until if row.blocked_until and row.blocked_until > now else None
    times = (blocked_until, ramp_opens_at, next_opening(policy, use, 1, now, tuning))
    is_time_alone = not row.is_paused and "concurrency" not in stopped_by
    return KeyStatus(
        id=row.id,
        name=row.name,
        at=now,
        policy=policy,
        own_policy=stored(row),
        overridden_until=row.override_until if row.override_until and row.override_until > now else None,
        is_paused=row.is_paused,
        blocked_until=blocked_until,
        running=row.held - row.unstarted,
        admitted=row.unstarted,
        starts=sum(cost for _, cost in spent),
        frees_at=min((at for at, _ in spent), default=None),
        resets_at=max((at for at, _ in spent), default=None),
        next_start_at=_next_start(policy, use, now, tuning),
        stopped_by=stopped_by,
        opens_at=max(filter(None, times), default=None) if is_time_alone else None,
        waiting=row.waiting,
        waiting_since=row.waiting_since,
        oversized=row.oversized,
    )


def _stopping(policy: Policy, use: Use, now: datetime, tuning: AdmissionTuning) -> Iterator[str]:
    """Name the limits that leave no room for a cost of 1."""
    if room(Policy(concurrency=policy.concurrency), use, now, tuning) < 1:
        yield "concurrency"
    if room(Policy(rate=policy.rate), use, now, tuning) < 1:
        yield "rate"
    if throttle_room(policy, use, now, tuning) < 1:
        yield "throttle"


def _next_start(policy: Policy, use: Use, now: datetime, tuning: AdmissionTuning) -> datetime | None:
    if policy.throttle is None:
        return None
    exact = AdmissionTuning(horizon=timedelta(0), margin=tuning.margin)
    return next_opening(Policy(throttle=policy.throttle), use, 1, now, exact) or now


def _json_time(at: datetime | None) -> str | None:
    """Write a time as RFC 3339, in UTC and milliseconds."""
    if at is None:
        return None
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# In words


def in_words(at: datetime, now: datetime) -> str:
    """Return a time relative to now, for people: "in 0.3 s", "in 5 minutes", "2 hours ago"."""
    seconds = (at - now).total_seconds()
    if abs(seconds) >= _EXACT:
        return arrow.get(at).humanize(now)
    return f"in {seconds:.2g} s" if seconds > 0 else "just now"


def brief(span: timedelta) -> str:
    """Return a short form of a duration, for people: "0.3 s", "44 s", "5 min", "2 h"."""
    seconds = max(0.0, span.total_seconds())
    if seconds < _EXACT:
        return f"{seconds:.2g} s"
    epoch = arrow.get(0)
    return epoch.shift(seconds=seconds).humanize(epoch, locale=_Brief.names[0], only_distance=True)


class _Brief(EnglishLocale):
    """English with the signs of the units; arrow knows it by its name."""

    names: ClassVar = ["en-brief"]
    timeframes: ClassVar = {
        "now": "0 s",
        "second": "1 s",
        "seconds": "{0} s",
        "minute": "1 min",
        "minutes": "{0} min",
        "hour": "1 h",
        "hours": "{0} h",
        "day": "1 d",
        "days": "{0} d",
        "week": "7 d",
        "weeks": "{0} wk",
        "month": "1 mo",
        "months": "{0} mo",
        "year": "1 y",
        "years": "{0} y",
    }
