"""What a pass does to those that wait, for the event log: whom a limit stopped, and whom it lets go."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from dispatcher.event_log import Entry
from dispatcher.limits.allocate import Allocation, LockedKey, LockedLane
from dispatcher.limits.policy import AdmissionTuning, Policy, Use, counted, throttle_room


@dataclass(frozen=True, kw_only=True)
class Tight:
    """One limit of a key, and how much of it is spent."""

    strategy: str
    """`concurrency`, `rate` or `throttle`."""
    limit: int
    spent: int
    key: str = ""


def tightest(policy: Policy, use: Use, now: datetime, pace: AdmissionTuning, *, key: str = "") -> Tight | None:
    """Return the limit that leaves the least room; None if there is no limit."""
    found: list[tuple[int, Tight]] = []
    if (limit := policy.concurrency) is not None:
        found.append((limit - use.held, Tight(key=key, strategy="concurrency", limit=limit, spent=use.held)))
    if (rate := policy.rate) is not None:
        spent = use.unstarted + sum(cost for _, cost in counted(rate, use, now, pace))
        found.append((rate.limit - spent, Tight(key=key, strategy="rate", limit=rate.limit, spent=spent)))
    if (throttle := policy.throttle) is not None:
        paced = Tight(key=key, strategy="throttle", limit=throttle.limit, spent=use.unstarted)
        found.append((throttle_room(policy, use, now, pace), paced))
    return min(found, key=lambda each: each[0])[1] if found else None


def stand(
    keys: Iterable[LockedKey], slots: Iterable[tuple[UUID, int | None, int]], now: datetime, pace: AdmissionTuning
) -> dict[int, Tight]:
    """Say how the tightest limit of each key stands after a pass, except for keys that a person or a block has closed.

    slots: what the pass gave away, as (call, key, cost).
    """
    keys = list(keys)
    groups = [key for key in keys if key.members is not None]
    spent = Counter[int]()
    for _, key_id, cost in slots:
        if key_id is not None:
            spent[key_id] += cost
    found = {
        key.id: tightest(key.policy, key.use.reserve(spent[key.id]), now, pace, key=key.name)
        for key in keys
        if not key.is_paused and (key.blocked_until is None or key.blocked_until <= now)
    }
    tight = {key_id: limit for key_id, limit in found.items() if limit is not None}
    for key in groups:
        # A group without limits of its own stands as its members do.
        limits = [tight[member] for member in key.members or () if member in tight]
        if key.id in found and key.id not in tight and limits:
            tight[key.id] = replace(limits[0], key=key.name)
    return tight


def of_pass(allocation: Allocation, lanes: Iterable[LockedLane], limits: Mapping[int, Tight]) -> Iterator[Entry]:
    """Return the events of calls that a limit stopped in this pass, or lets go (ojs-rate-limiting, section 11.1).

    Each wait of a call is one event. One that is left to its queue waits for no limit any more.
    """
    admitted, stopped = set(allocation.admitted), dict(allocation.stopped)
    for lane in lanes:
        for head in lane.heads:
            stop, waited = stopped.get(head.call_id), lane.parked_on if head is lane.heads[0] else None
            about: dict[str, Any] = {"job_id": str(head.call_id)}
            if stop is not None and stop != waited and (limit := limits.get(stop)):
                details = {"key": limit.key, "strategy": limit.strategy, "limit": limit.limit, "current": limit.spent}
                yield Entry(kind="rate_limit.exceeded", queue=lane.queue, data={**about, **details})
            is_free = head.call_id in admitted or lane.id in allocation.held
            if waited is not None and is_free and (limit := limits.get(waited)):
                details = {"key": limit.key, "strategy": limit.strategy}
                yield Entry(kind="rate_limit.released", queue=lane.queue, data={**about, **details})
