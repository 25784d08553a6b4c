"""Oversized: calls that cost more than the limits of a key ever allow. They wait alone, until the limits change."""

from collections.abc import Collection, Mapping
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
_COUNTED = 100_000
"""How many calls that wait for a key are read to count those that do not fit."""
_LARGEST = 2**31 - 1
"""The largest cost that the database can hold."""


@dataclass(frozen=True, kw_only=True)
class Released:
    """How many calls wait in their lanes again, and where the next look goes on."""

    calls: int = 0
    last: int = 0


def release(
    keys: Collection[int] | None = None,
    *,
    after: int = 0,
    most: int = _KEYS,
    until: float | None = None,
    now: datetime | None = None,
) -> Released:
    """Let the calls wait in their lanes again whose cost the limits in force allow; the next trip reads their notes.

    keys: where to look, and at their groups; by default at the next `most` keys with such calls after this one. until:
    the monotonic time after which the rest is left to the next look.
    """
    params = {"keys": None if keys is None else list(keys), "after": after, "most_keys": most, "most": _BATCH}
    calls = 0
    while True:
        (batch,) = sql.fetch("release_oversized", Released, {**params, "now": now})
        calls += batch.calls
        if batch.calls < _BATCH or (until is not None and monotonic() > until):
            return Released(calls=calls, last=batch.last)


def count(name: str, limits: Mapping[str, Any], *, keeps_others: bool) -> int:
    """Return how many calls that wait for a key cost more than these limits ever allow, among the first 100,000.

    keeps_others: strategies not named are the key's own. Raises PolicyInvalid or KeyNotFound.
    """
    key = RateLimitKey.objects.filter(name=name).first()
    if key is None:
        raise KeyNotFound(name, lanes.known_names())
    policy = Policy.parse({**(stored(key).as_json() if keeps_others else {}), **limits})
    if policy.largest_cost >= _LARGEST:
        return 0
    (calls,) = sql.fetch("count_oversized", int, {"name": name, "cost": policy.largest_cost, "bound": _COUNTED})
    return calls
