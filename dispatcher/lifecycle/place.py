"""Place: make the lanes of calls that were written without one, and put them in, in transactions of its own."""

import logging
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from django.db import OperationalError

from dispatcher import lanes, sql
from dispatcher.lanes import Kind, Placement
from dispatcher.limits.policy import Policy
from dispatcher.models import CallQueue
from dispatcher.states import OnLimit

logger = logging.getLogger(__name__)

_PATIENCE = timedelta(milliseconds=250)
"""How long all lock waits of one `place` may take."""
_MOST_WAITS = 16
"""And how many there may be: each costs a transaction, too."""
FIRST = -(2**63)
"""Before all positions."""


_Group = tuple[Kind, Sequence[UUID]]


def place(calls: Collection[UUID], *, lock_wait: timedelta) -> list[CallQueue]:
    """Put these calls into their lanes; return those that were.

    Those whose key or lane another open transaction has made are left for a later time, after a wait of `lock_wait`.
    So are others when such waits have taken _PATIENCE; the order is random, so that all have their turn.
    """
    if not calls:
        return []
    unplaced = CallQueue.objects.filter(id__in=list(calls), lane=None, finished_at=None).order_by("position", "id")
    rows = list(unplaced.only("queue", "priority", "on_limit", "placement"))
    if not rows:
        return []
    placements: list[Any] = [row.placement for row in rows]
    missing, gone = _missing(placements)
    groups: dict[Kind, list[UUID]] = {}
    for row, placement in zip(rows, placements, strict=True):
        names = tuple(name for name in placement["names"] if name not in gone)
        kind = Kind(queue=row.queue, priority=row.priority, on_limit=OnLimit(row.on_limit), names=names)
        groups.setdefault(kind, []).append(row.id)
    mixed = random.sample(list(groups.items()), len(groups))
    senders = {name: sender for each in reversed(placements) for name, sender in each["senders"].items()}
    # Waits are counted, and not the time that the calls themselves take: a slow machine may place as many.
    waits = iter(range(min(_MOST_WAITS, 1 + _PATIENCE // lock_wait)))
    return [*_place(mixed, partial(_place_together, missing, senders, lock_wait), waits)]


def next_unplaced(after: int, most: int) -> tuple[list[UUID], int]:
    """Return calls without a lane, up to `most` after a position, in order of sending, and where the next look goes on.

    They are what a sender leaves that dies between its commit and its hook, or that another transaction stopped.
    """
    unplaced = CallQueue.objects.filter(lane=None, finished_at=None, position__gt=after).order_by("position", "id")
    with sql.own_transaction(in_order=True):
        found = list(unplaced.values_list("id", "position")[:most])
    return [call for call, _ in found], found[-1][1] if len(found) == most else FIRST


def _missing(placements: Sequence[Placement]) -> tuple[dict[str, Policy], set[str]]:
    """Return the keys that are to be made, and those that were deleted since the send: these limit nothing any more."""
    stored = {name: policy for each in reversed(placements) for name, policy in each["policies"].items()}
    given = {name: Policy.parse(policy) for name, policy in stored.items()}
    named = {name for each in placements for name in each["names"]}
    absent = (named | given.keys()) - lanes.stored_policies(named | given.keys()).keys()
    policies = {name: given.get(name) or lanes.declared_policy(name) for name in absent}
    made = {name: policy for name, policy in policies.items() if policy is not None}
    return made, named & absent - made.keys()


def _place(
    groups: Sequence[_Group], together: Callable[[Sequence[_Group]], list[CallQueue]], waits: Iterator[int]
) -> Iterator[CallQueue]:
    """Place all at once; where another transaction is in the way, half by half, until it alone is left out."""
    try:
        placed = together(groups)
    except OperationalError as fault:
        if not sql.is_locked(fault):
            raise
        middle = len(groups) // 2
        if middle and next(waits, None) is not None:
            for half in (groups[:middle], groups[middle:]):
                yield from _place(half, together, waits)
        if not middle:
            logger.info(
                "another transaction has made a key or the lane of %s and is open; its calls wait", groups[0][0]
            )
    else:
        yield from placed


def _place_together(
    missing: Mapping[str, Policy], senders: Mapping[str, str], lock_wait: timedelta, groups: Sequence[_Group]
) -> list[CallQueue]:
    """Place all. missing: the keys that are to be made. senders: who gave which policy over HTTP."""
    kinds = {kind: number for number, (kind, _) in enumerate(groups)}
    params = {
        "kinds": lanes.kinds_json(kinds),
        "calls": [call for _, calls in groups for call in calls],
        "kind_of": [kinds[kind] for kind, calls in groups for _ in calls],
    }
    with sql.own_transaction(lock_wait=lock_wait):
        policies = {name: policy for kind in kinds for name, policy in kind.of(missing).items()}
        lanes.make_keys(policies, senders=senders)
        lanes.make_lanes(kinds)
        return sql.fetch("place_calls", CallQueue, params)
