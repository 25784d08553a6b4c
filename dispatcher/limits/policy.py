"""Policies: the limits of a key, as they are given, stored and shown. What a key allows is the function room.

Pure: no Django, no clock, no I/O. `now` is always handed in, and is always the database's.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Final, Self

from dispatcher import validate
from dispatcher.errors import PolicyInvalid
from dispatcher.limits.durations import format_duration, parse_duration

LARGEST: Final = 2**31 - 1
"""The largest number that a column of the database holds."""
UNLIMITED: Final = sys.maxsize
"""The largest cost under a key that limits nothing."""

_CELERYS: Final = re.compile(r"(\d{1,10})/([smh])")
_CELERYS_PERIODS: Final = {"s": timedelta(seconds=1), "m": timedelta(minutes=1), "h": timedelta(hours=1)}
"""Celery's notation of a rate limit: "100/m"."""
LASTING: Final = ("fair_by", "weight", "observe")
"""What a policy has beside its limits: no override changes it."""
LONGEST_PERIOD: Final = timedelta(days=366)
HEAVIEST: Final = 1000
"""The largest weight of a share."""
_TEMPLATE: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._:-]{,253}\*")
"""The beginning that names of keys share, and a `*`."""
_SHORTEST_PERIOD: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, kw_only=True)
class Rate:
    """So many starts (in cost) per period: of a sliding window, or evenly spaced for a throttle."""

    limit: int
    period: timedelta

    @property
    def spacing(self) -> timedelta:
        """The time between two starts of cost 1, rounded up to a microsecond."""
        return -(-self.period // self.limit)

    @classmethod
    def parse(cls, value: object, field: str) -> Self | None:
        """Read {"limit", "period"}, a pair or Celery's "100/m"; None means no limit. Raises PolicyInvalid."""
        match value:
            case None:
                return None
            case Rate():
                limit, period = value.limit, value.period
            case {"limit": limit, "period": period, **rest} if not rest:
                pass
            case [limit, period]:
                pass
            case str() if found := _CELERYS.fullmatch(value):
                limit, period = int(found[1]), _CELERYS_PERIODS[found[2]]
            case _:
                raise PolicyInvalid(
                    field,
                    f'{value!r} is not a rate; give {{"limit": 100, "period": "PT1M"}}, (100, "PT1M") or "100/m".',
                )
        remedy = "; to stop a key, pause it or set concurrency 0"
        validate.whole(f"{field}.limit", limit, 1, LARGEST, remedy=remedy, error=PolicyInvalid)
        length = parse_duration(period, f"{field}.period")
        if not _SHORTEST_PERIOD <= length <= LONGEST_PERIOD:
            raise PolicyInvalid(f"{field}.period", f"{period!r} must be from 1 millisecond to 366 days.")
        return cls(limit=limit, period=length)

    def as_json(self) -> dict[str, Any]:
        """Write it as the Open Job Spec does (rate limiting, section 6.1)."""
        return {"limit": self.limit, "period": format_duration(self.period)}

    def __str__(self) -> str:
        """Write it for people: 100/PT1M."""
        return f"{self.limit}/{format_duration(self.period)}"


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The limits of a key; None is no limit, concurrency 0 lets nothing start."""

    concurrency: int | None = None
    per_worker: int | None = None
    """The most cost in flight that one worker holds."""
    rate: Rate | None = None
    throttle: Rate | None = None
    fair_by: str | None = None
    """The template of the keys by which the calls that wait for this key take turns, such as `tenant:*`."""
    weight: int = 1
    """How many turns its calls take as a share of such a key, beside one of a share of weight 1."""
    observe: bool = False
    """The limits stop nothing; what they would have delayed is counted."""

    @classmethod
    def parse(cls, value: Mapping[str, Any], field: str = "policy") -> Self:
        """Read an Open Job Spec policy without its key and on_limit. Raises PolicyInvalid naming the field."""
        known = {f.name for f in fields(cls)}
        if not isinstance(value, Mapping):
            raise PolicyInvalid(field, f'{value!r} is not a policy; give {{"concurrency": 5}}, say.')
        if unknown := sorted(set(value) - known):
            raise PolicyInvalid(f"{field}.{unknown[0]}", f"unknown; a policy has {', '.join(sorted(known))}.")
        return cls(
            concurrency=_whole(value, field, "concurrency", 0, ", or None for no limit"),
            per_worker=_whole(value, field, "per_worker", 1, ", or None for no limit; to start nothing, pause the key"),
            rate=Rate.parse(value.get("rate"), f"{field}.rate"),
            throttle=Rate.parse(value.get("throttle"), f"{field}.throttle"),
            fair_by=_template(value.get("fair_by"), f"{field}.fair_by"),
            weight=_whole(value, field, "weight", 1, ", or None for 1", most=HEAVIEST) or 1,
            observe=_flag(value.get("observe"), f"{field}.observe"),
        )

    @property
    def is_unlimited(self) -> bool:
        """Whether nothing is set at all."""
        return self == type(self)()

    def fits(self, cost: int) -> bool:
        """Whether a call of this cost could ever start, and another one after it; a concurrency of 0 is a pause."""
        return cost <= self.largest_cost

    @property
    def largest_cost(self) -> int:
        """The most that a call may cost to start at all, and another one after it; UNLIMITED without a limit."""
        return min((most for most, _ in self._costs()), default=UNLIMITED)

    def exceeded_by(self, cost: int) -> str:
        """Return in words the limits that never allow this cost."""
        return " and ".join(words for most, words in self._costs() if cost > most)

    def _costs(self) -> Iterator[tuple[int, str]]:
        """Return the largest cost that each limit allows, and the limit in words."""
        if self.observe:
            return
        if self.concurrency:
            yield self.concurrency, f"the concurrency is {self.concurrency}"
        if self.per_worker:
            yield self.per_worker, f"the limit per worker is {self.per_worker}"
        if self.rate is not None:
            yield self.rate.limit, f"the rate is {self.rate}"
        if self.throttle is not None:
            words = f"under the throttle {self.throttle} the next start would be more than a year away"
            yield LONGEST_PERIOD // self.throttle.spacing, words

    def columns(self) -> dict[str, Any]:
        """Return the columns of a key that store it."""
        return {
            "concurrency": self.concurrency,
            "per_worker": self.per_worker,
            "rate_limit": self.rate and self.rate.limit,
            "rate_period": self.rate and self.rate.period,
            "throttle_limit": self.throttle and self.throttle.limit,
            "throttle_period": self.throttle and self.throttle.period,
            "fair_by": self.fair_by,
            "weight": self.weight,
            "is_observed": self.observe,
        }

    def as_json(self) -> dict[str, Any]:
        """Write it as the Open Job Spec does, and what is our own; None where there is no limit."""
        return {
            "concurrency": self.concurrency,
            "per_worker": self.per_worker,
            "rate": self.rate and self.rate.as_json(),
            "throttle": self.throttle and self.throttle.as_json(),
            **({"fair_by": self.fair_by} if self.fair_by is not None else {}),
            **({"weight": self.weight} if self.weight > 1 else {}),
            **({"observe": True} if self.observe else {}),
        }


def _template(value: object, field: str) -> str | None:
    if value is None or (isinstance(value, str) and _TEMPLATE.fullmatch(value)):
        return value
    raise PolicyInvalid(field, f"{value!r} must be the beginning of key names and a *, such as 'tenant:*', or None.")


def _flag(value: object, field: str) -> bool:
    if value is None or isinstance(value, bool):
        return bool(value)
    raise PolicyInvalid(field, f"{value!r} must be True or False.")


def _whole(
    policy: Mapping[str, Any], field: str, name: str, least: int, remedy: str, *, most: int = LARGEST
) -> int | None:
    value = policy.get(name)
    if value is None:
        return None
    return validate.whole(f"{field}.{name}", value, least, most, remedy=remedy, error=PolicyInvalid)


def strategy_of(column: str) -> str:
    """Return the field of a policy that a column stores: `rate` for `rate_limit` and `rate_period`."""
    if column == "is_observed":
        return "observe"
    return column.removesuffix("_limit").removesuffix("_period")


def stored(key: Any, prefix: str = "") -> Policy:
    """Return the policy that a key row stores: its own, or with the prefix `override_` its override's."""

    def rate(name: str) -> Rate | None:
        limit, period = getattr(key, f"{prefix}{name}_limit"), getattr(key, f"{prefix}{name}_period")
        return Rate(limit=limit, period=period) if limit else None

    return Policy(
        concurrency=getattr(key, f"{prefix}concurrency"),
        per_worker=getattr(key, f"{prefix}per_worker"),
        rate=rate("rate"),
        throttle=rate("throttle"),
        fair_by=key.fair_by,
        weight=key.weight,
        observe=key.is_observed,
    )


def in_force(key: Any, now: datetime) -> Policy:
    """Return the policy of a key row that holds now: its own, or the override's until that ends."""
    is_overridden = key.override_until is not None and key.override_until > now
    return stored(key, "override_" if is_overridden else "")


def describe_period(rate: Rate) -> str:
    """Write the period of a rate in few letters: 1m30s."""
    return format_duration(rate.period).removeprefix("P").replace("T", "").lower()


def describe(policy: Policy) -> str:
    """Write a policy in words: concurrency 4, 2 per worker, 20 in any 1m, 10 per 1s."""
    concurrency, rate, throttle = policy.concurrency, policy.rate, policy.throttle
    named = [
        *([f"concurrency {concurrency}"] if concurrency is not None else []),
        *([f"{policy.per_worker} per worker"] if policy.per_worker is not None else []),
        *([f"{rate.limit} in any {describe_period(rate)}"] if rate else []),
        *([f"{throttle.limit} per {describe_period(throttle)}"] if throttle else []),
        *([f"turns by {policy.fair_by}"] if policy.fair_by is not None else []),
        *([f"weight {policy.weight}"] if policy.weight > 1 else []),
        *(["observed"] if policy.observe else []),
    ]
    return ", ".join(named) or "no limits"
