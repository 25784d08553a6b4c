"""What a pass reads under its locks: keys with what is spent of them, lanes with the calls at their heads.

Pure: rows of the database become what `allocate` decides by.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from uuid import UUID

from dispatcher.limits.allocate import Head, LockedKey, LockedLane
from dispatcher.limits.policy import Policy, Use, in_force, next_start
from dispatcher.states import OnLimit


@dataclass(frozen=True, kw_only=True)
class PolicyRow:
    """The limits that a key stores (see policy.stored)."""

    id: int
    concurrency: int | None
    per_worker: int | None
    rate_limit: int | None
    rate_period: timedelta | None
    throttle_limit: int | None
    throttle_period: timedelta | None


@dataclass(frozen=True, kw_only=True)
class OverridableRow(PolicyRow):
    """The limits that a key stores, and its override (see policy.in_force)."""

    override_until: datetime | None
    override_concurrency: int | None
    override_per_worker: int | None
    override_rate_limit: int | None
    override_rate_period: timedelta | None
    override_throttle_limit: int | None
    override_throttle_period: timedelta | None


@dataclass(frozen=True, kw_only=True)
class KeyRow(OverridableRow):
    """A key, and what is spent of it."""

    name: str
    is_paused: bool
    blocked_until: datetime | None
    last_start_at: datetime | None
    last_cost: int
    held: int
    mine: int | None
    unstarted: int
    start_at: list[datetime]
    start_cost: list[int]
    chosen_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class HeadRow:
    """A lane, and one of the calls at its head; without a call if none waits in it."""

    now: datetime
    lane_id: int
    queue: str
    priority: int
    on_limit: str
    key_ids: list[int]
    parked_on: int | None
    yields_to_higher_priority: bool
    yields_to_parked_lane: bool
    call_id: UUID | None
    costs: dict[str, int] | None


def use(row: KeyRow, policy: Policy) -> Use:
    """Return what is spent of a key under this policy."""
    return Use(
        held=row.held,
        mine=row.mine,
        unstarted=row.unstarted,
        starts=tuple(zip(row.start_at, row.start_cost, strict=True)),
        next_start_at=next_start(policy, row.last_start_at, row.last_cost),
    )


def locked_key(row: KeyRow, now: datetime, members: Sequence[int] | None = None) -> LockedKey:
    """Return a key with the policy in force; members: of a group, its keys."""
    policy = in_force(row, now)
    return LockedKey(
        id=row.id,
        name=row.name,
        policy=policy,
        use=use(row, policy),
        is_paused=row.is_paused,
        blocked_until=row.blocked_until,
        chosen_at=row.chosen_at,
        members=members,
    )


def locked_lanes(rows: Iterable[HeadRow], names: Mapping[str, int], heads: int) -> Iterable[LockedLane]:
    """Return lanes with their heads.

    names: the ids of the keys that exist; heads: how many calls were read of each lane at the most.
    """
    key_ids = set(names.values())
    for _, group in groupby(rows, key=lambda row: row.lane_id):
        calls = list(group)
        lane = calls[0]
        queue_key = names.get(f"queue:{lane.queue}")
        found = [call for call in calls if call.call_id is not None]
        yield LockedLane(
            id=lane.lane_id,
            queue=lane.queue,
            priority=lane.priority,
            on_limit=OnLimit(lane.on_limit),
            # A key that was deleted limits nothing any more.
            key_ids=sorted({*lane.key_ids, *([queue_key] if queue_key else [])} & key_ids),
            heads=[
                Head(
                    call_id=call.call_id,
                    costs={names[name]: cost for name, cost in (call.costs or {}).items() if name in names},
                )
                for call in found
                if call.call_id is not None
            ],
            has_more=len(found) == heads,
            parked_on=lane.parked_on,
            yields_to_higher_priority=lane.yields_to_higher_priority,
            yields_to_parked_lane=lane.yields_to_parked_lane,
        )
