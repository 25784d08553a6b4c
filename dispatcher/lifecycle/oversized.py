"""Oversized: calls that cost more than the limits of a key ever allow. They wait alone, until the limits change."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from time import monotonic
from typing import Any

from dispatcher import lanes, sql
from dispatcher.errors import KeyNotFound
from dispatcher.limits.policy import Policy, stored
from dispatcher.models import RateLimitKey

_BATCH = 1_000
"""How many calls of a key one statement lets go on."""
_KEYS = 100
"""At how many keys one look looks."""
_RELEASE_S = 0.2
"""For how long one look lets calls go on."""
_COUNTED = 100_000
"""How many calls that wait for a key are read to count those that do not fit."""
_LARGEST = 2**31 - 1
"""The largest cost that the database can hold."""


class _Next:
    """After which key this process's next look begins."""

    key = 0


@dataclass(frozen=True, kw_only=True)
class _Released:
    calls: int
    last: int


def release(*, now: datetime | None = None) -> int:
    """Let the calls wait in their lanes again whose cost the limits in force allow, for a short time; return how many.

    The next trip reads their notes. Each call goes on where the last one of this process ended.
    """
    until, calls = monotonic() + _RELEASE_S, 0
    while True:
        params = {"after": _Next.key, "most_keys": _KEYS, "most": _BATCH, "now": now}
        (batch,) = sql.fetch("release_oversized", _Released, params)
        calls += batch.calls
        if batch.calls < _BATCH:
            _Next.key = batch.last
            if batch.last == 0:
                return calls
        if monotonic() > until:
            return calls


def count(name: str, limits: Mapping[str, Any], *, keeps_others: bool) -> int:
    """Return how many calls that wait for a key cost more than these limits ever allow, among the first 100,000.

    keeps_others: strategies not named are the key's own. Raises PolicyInvalid or KeyNotFound.
    """
    key = RateLimitKey.objects.filter(name=name).first()
    if key is None:
        raise KeyNotFound(name, lanes.known_names())
    others = stored(key).as_json() if keeps_others else {"observe": key.is_observed}
    policy = Policy.parse({**others, **limits})
    if policy.largest_cost >= _LARGEST:
        return 0
    (calls,) = sql.fetch("count_oversized", int, {"name": name, "cost": policy.largest_cost, "bound": _COUNTED})
    return calls
