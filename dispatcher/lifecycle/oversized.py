"""Oversized: calls that cost more than the limits of a key ever allow. They wait alone, until the limits change."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from time import monotonic
from typing import Any

from dispatcher import lanes, sql
from dispatcher.conf import conf
from dispatcher.errors import KeyNotFound
from dispatcher.limits.policy import Policy, in_force, stored
from dispatcher.limits.usage import OverridableRow
from dispatcher.models import RateLimitKey

_BATCH = 1_000
"""How many calls of a key one statement lets go on."""
_COUNTED = 100_000
"""How many calls that wait for a key are read to count those that do not fit."""
_LARGEST = 2**31 - 1
"""The largest cost that the database can hold."""


@dataclass(frozen=True, kw_only=True)
class Released:
    """How many calls wait in their lanes again, and where the next look goes on."""

    calls: int = 0
    last: int = 0


@dataclass(frozen=True, kw_only=True)
class _Key(OverridableRow):
    cheapest: int
    now: datetime
    is_group: bool


@dataclass(frozen=True, kw_only=True)
class _Member(OverridableRow):
    group_id: int


def release(
    keys: Collection[int] | None = None,
    *,
    after: int = 0,
    most: int = 1_000,
    until: float | None = None,
    now: datetime | None = None,
) -> Released:
    """Let the calls wait in their lanes again whose cost the limits in force allow, and wake the lanes.

    keys: where to look; by default at the next `most` keys with such calls after this one. until: the monotonic time
    after which the rest is left to the next look.
    """
    params = {"keys": None if keys is None else list(keys), "after": after, "most": most, "now": now}
    rows = sql.fetch("oversized_keys", _Key, params)
    members = _largest_costs(row for row in rows if row.is_group)
    fitting = {
        row.id: min(in_force(row, row.now).largest_cost, members.get(row.id, _LARGEST), _LARGEST) for row in rows
    }
    raised = {row.id: fitting[row.id] for row in rows if row.cheapest <= fitting[row.id]}
    calls = 0
    while raised and (batch := _release(raised)):
        calls += batch
        if batch < _BATCH or (until is not None and monotonic() > until):
            break
    return Released(calls=calls, last=rows[-1].id if keys is None and len(rows) == most else 0)


def count(name: str, limits: Mapping[str, Any], *, keeps_others: bool) -> int:
    """Return how many calls that wait for a key cost more than these limits ever allow, among the first 100,000.

    keeps_others: strategies not named are the key's own. Raises PolicyInvalid or KeyNotFound.
    """
    key = RateLimitKey.objects.using(conf().database).filter(name=name).first()
    if key is None:
        raise KeyNotFound(name, lanes.known_names())
    policy = Policy.parse({**(stored(key).as_json() if keeps_others else {}), **limits})
    if policy.largest_cost >= _LARGEST:
        return 0
    (calls,) = sql.fetch("count_oversized", int, {"name": name, "cost": policy.largest_cost, "bound": _COUNTED})
    return calls


def _largest_costs(several: Iterable[_Key]) -> dict[int, int]:
    """Return the most that a call may cost which spends any one member of these groups."""
    now = {row.id: row.now for row in several}
    found: dict[int, int] = {}
    for member in sql.fetch("member_limits", _Member, {"groups": list(now)}) if now else ():
        cost = in_force(member, now[member.group_id]).largest_cost
        found[member.group_id] = max(cost, found.get(member.group_id, 0))
    return found


def _release(raised: dict[int, int]) -> int:
    params = {"keys": list(raised), "costs": list(raised.values()), "most": _BATCH}
    with sql.atomic():
        found = sql.fetch("release_oversized", int, params)
        if found:
            # Parked lanes, too: what comes back may be their first call now.
            sql.change("defer_lanes", {"lanes": sorted(set(found))})
    return len(found)
