"""How each key stands: what it allows, what is spent of it, and what waits for it."""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Final

from dispatcher import groups, lanes, sql
from dispatcher.conf import conf, counting
from dispatcher.limits.durations import format_duration
from dispatcher.limits.policy import Policy, in_force, stored
from dispatcher.reports.words import brief, format_time
from dispatcher.states import Labelled

_MOST_SHARES: Final = 1000
"""How many shares are shown."""


class KeyState(Labelled):
    """What a key lets happen; where several hold, the first of these."""

    PAUSED = "paused"
    BLOCKED = "blocked"
    AT_LIMIT = "at_limit"
    OBSERVED = "observed"
    OPEN = "open"


@dataclass(frozen=True, kw_only=True)
class Members:
    """How many keys a group may choose, and how many of them have room for a call of cost 1."""

    total: int
    open: int


@dataclass(frozen=True, kw_only=True)
class Share:
    """A share of the calls that wait for a key with fair_by, those of one priority."""

    key: str
    priority: int
    share: str | None
    """The key that names it; None: calls without a key of the template."""
    weight: int
    lanes: int
    """How many lanes wait."""
    ahead: float
    """How much cost by weight 1 its next start is ahead of the share that is due; negative: behind."""

    def as_json(self) -> dict[str, Any]:
        """Write it without the key that it is shown with."""
        return {name: value for name, value in asdict(self).items() if name != "key"}


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What the limits of an observed key would have done, see the function observe."""

    since: datetime
    """When its limits last changed, or it came to be observed."""
    delayed: int
    """How many starts they would have delayed."""
    longest: timedelta | None
    """By how much rate and throttle would have delayed one at the most; None: they would have delayed none."""

    def as_json(self) -> dict[str, Any]:
        """Write it; the duration as ISO 8601."""
        longest = None if self.longest is None else format_duration(self.longest)
        return {"since": format_time(self.since), "delayed": self.delayed, "longest": longest}

    def __str__(self) -> str:
        """Write it for people."""
        calls = "1 call" if self.delayed == 1 else f"{self.delayed:,} calls"
        return f"would have delayed {calls}" + (f", the longest by {brief(self.longest)}" if self.longest else "")


@dataclass(frozen=True, kw_only=True)
class KeyStatus:
    """One key at one moment by the database's clock, with its limits as they are stored (see `policy`).

    All amounts but `waiting` and `oversized` are costs.
    """

    id: int
    name: str
    at: datetime
    concurrency: int | None
    per_worker: int | None
    rate_limit: int | None
    rate_period: timedelta | None
    throttle_limit: int | None
    throttle_period: timedelta | None
    fair_by: str | None
    weight: int
    is_observed: bool
    override_until: datetime | None
    override_concurrency: int | None
    override_per_worker: int | None
    override_rate_limit: int | None
    override_rate_period: timedelta | None
    override_throttle_limit: int | None
    override_throttle_period: timedelta | None
    is_paused: bool
    blocked_until: datetime | None
    is_ramping: bool
    """Whether what is in flight grows step by step after a block, and is as much as it may be."""
    in_flight: int
    """What is held of it, from the take to the end."""
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
    opens_at: datetime | None
    """When time alone lets the next call start; None if it does now, or if it takes an end or a person."""
    waiting: int
    """How many calls wait."""
    waiting_since: datetime | None
    """Since when the first in line waits."""
    most_of_one_worker: int
    """The most that one worker holds; 0 without a limit per worker."""
    oversized: int
    """How many of those cost more than the limits in force ever allow: they wait alone until the limits change."""
    limited_at: datetime
    """When its limits last changed, or it came to be observed."""
    delayed: int | None
    """How many starts its limits would have delayed since then; None: they are enforced."""
    longest: timedelta | None
    """By how much rate and throttle would have delayed one of these at the most."""
    members: Members | None = None
    """Of a group."""
    shares: Sequence[Share] = ()
    """Of a key with fair_by that was named, those that wait."""

    @cached_property
    def policy(self) -> Policy:
        """The limits in force: the override's while there is one."""
        return in_force(self, self.at)

    @property
    def own_policy(self) -> Policy:
        """The limits that hold without an override."""
        return stored(self)

    @property
    def overridden_until(self) -> datetime | None:
        """When its own limits hold again; None if they do now."""
        return self.override_until if self.override_until is not None and self.override_until > self.at else None

    @property
    def running(self) -> int:
        """Slots of calls that have started."""
        return self.in_flight - self.admitted

    @property
    def used(self) -> int:
        """What counts against the window's limit: starts, and what is dispatched and will start."""
        return self.starts + self.admitted

    @cached_property
    def stopped_by(self) -> Sequence[str]:
        """What leaves no room for a call of cost 1: concurrency, rate, throttle, the ramp after a block, and members.

        The ramp, if these alone would leave some; members, where none has room.
        """
        limit, rate, next_at = self.policy.concurrency, self.policy.rate, self.next_start_at
        if self.policy.observe:
            limit = rate = None
        held = {
            "concurrency": limit is not None and self.in_flight >= limit,
            "rate": rate is not None and self.used >= rate.limit,
        }
        is_early = next_at is not None and next_at > self.at + conf().horizon
        is_ramping = self.is_ramping and not (self.is_paused or any(held.values()))
        stops = {**held, "throttle": is_early, "ramp": is_ramping}
        found = tuple(name for name, is_stopped in stops.items() if is_stopped)
        return found or (("members",) if self.members is not None and not self.members.open else ())

    @property
    def state(self) -> KeyState:
        """What it lets happen."""
        if self.is_paused:
            return KeyState.PAUSED
        if self.blocked_until is not None:
            return KeyState.BLOCKED
        if self.stopped_by:
            return KeyState.AT_LIMIT
        return KeyState.OBSERVED if self.policy.observe else KeyState.OPEN

    @property
    def is_open(self) -> bool:
        """Whether it lets a call of cost 1 start."""
        return self.state in (KeyState.OPEN, KeyState.OBSERVED)

    @property
    def observed(self) -> Observed | None:
        """What its limits would have done; None: they are enforced."""
        if self.delayed is None:
            return None
        return Observed(since=self.limited_at, delayed=self.delayed, longest=self.longest)

    def as_json(self) -> dict[str, Any]:
        """Write it as the Open Job Spec does (rate limiting, section 10.1), with what more is known."""
        return {
            "key": self.name,
            "state": self.state.value,
            "stopped_by": list(self.stopped_by),
            "members": self.members and asdict(self.members),
            "concurrency": self._concurrency(),
            "per_worker": self.policy.per_worker
            and {"limit": self.policy.per_worker, "active": self.most_of_one_worker},
            "rate": self.policy.rate
            and {
                **self.policy.rate.as_json(),
                "current_count": self.used,
                "frees_at": format_time(self.frees_at),
                "window_resets_at": format_time(self.resets_at),
            },
            "throttle": self.policy.throttle
            and {**self.policy.throttle.as_json(), "next_allowed_at": format_time(self.next_start_at)},
            "fair_by": self.policy.fair_by,
            "weight": self.policy.weight,
            "shares": [share.as_json() for share in self.shares] if self.policy.fair_by else None,
            "observed": self.observed and self.observed.as_json(),
            "active": self.in_flight,
            "running": self.running,
            "admitted": self.admitted,
            "waiting_count": self.waiting,
            "waiting_since": format_time(self.waiting_since),
            "oversized_count": self.oversized,
            "opens_at": format_time(self.opens_at),
            "paused": self.is_paused,
            "blocked_until": format_time(self.blocked_until),
            "override_expires_at": format_time(self.overridden_until),
            "own_limits": self.own_policy.as_json() if self.overridden_until else None,
        }

    def _concurrency(self) -> dict[str, int] | None:
        limit = self.policy.concurrency
        if limit is None:
            return None
        return {"limit": limit, "active": self.in_flight, "available": max(0, limit - self.in_flight)}


def rate_limit_status(keys: Collection[str] | None = None, *, now: datetime | None = None) -> list[KeyStatus]:
    """Return how these keys stand, or all if None, in order of name; names that do not exist are left out.

    One statement, whatever the number of keys, and one more where groups are named without their members, or keys with
    fair_by: these come with their shares.
    """
    found = _statuses(keys, now)
    if keys is not None and (fair := [status.name for status in found if status.policy.fair_by is not None]):
        shares = sql.fetch("report_shares", Share, {"names": fair, "most": _MOST_SHARES})
        found = [replace(status, shares=[each for each in shares if each.key == status.name]) for status in found]
    patterns = [status.name for status in found if groups.is_group(status.name)]
    if not patterns:
        return found
    members = found if keys is None else _statuses(lanes.member_names(patterns), now)
    return [_with_members(status, members) if status.name in patterns else status for status in found]


def _with_members(group: KeyStatus, keys: Sequence[KeyStatus]) -> KeyStatus:
    """Return how a group stands, which has room while one of its members has."""
    members = [key for key in keys if groups.has_member(group.name, key.name)]
    is_open = [key.is_open for key in members]
    counted = replace(group, members=Members(total=len(members), open=sum(is_open)))
    if counted.state is group.state:
        return counted
    return replace(counted, opens_at=min((key.opens_at for key in members if key.opens_at is not None), default=None))


def _statuses(keys: Collection[str] | None, now: datetime | None) -> list[KeyStatus]:
    names = None if keys is None else list(keys)
    return sql.fetch("report_keys", KeyStatus, {"names": names, **counting(), "now": now})
