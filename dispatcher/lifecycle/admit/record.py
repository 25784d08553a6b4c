"""Record what a pass decided: calls admitted, put off or dropped, lanes parked, held or awake, keys' next openings."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from dispatcher import sql
from dispatcher.limits.allocate import Allocation, LockedLane
from dispatcher.messages.message import Admitted
from dispatcher.states import State


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """A call that a key with `on_limit` drop did not let in."""

    id: UUID
    key: str


def slots_of(allocation: Allocation, lanes: Iterable[LockedLane]) -> list[tuple[UUID, int | None, int]]:
    """Return the slots of the admitted calls as (call, key, cost); a call without keys has one without a key.

    The key that was chosen of a group is spent beside the group.
    """
    admitted = set(allocation.admitted)
    calls = [(lane, head) for lane in lanes for head in lane.heads if head.call_id in admitted]
    named = [
        (head.call_id, key_id, head.costs.get(key_id, 1) if key_id else 1)
        for lane, head in calls
        for key_id in lane.key_ids or (None,)
    ]
    chosen = [
        (head.call_id, member, head.costs.get(group, 1))
        for _, head in calls
        for group, member in allocation.chosen.get(head.call_id, {}).items()
    ]
    return named + chosen


def write(
    allocation: Allocation,
    slots: Sequence[tuple[UUID, int | None, int]],
    lanes: Sequence[LockedLane],
    *,
    names: Mapping[int, str],
    now: datetime | None,
    lease: timedelta,
) -> tuple[list[Dropped], sql.Asked[Admitted]]:
    """Write what was decided of the lanes, their calls and keys; return the calls dropped, and those admitted."""
    dropped = _settle_others(allocation, now=now)
    turn_of = {call: turn for turn, call in enumerate(allocation.admitted)}
    turns = {lane.id: max((turn_of.get(head.call_id, -1) for head in lane.heads), default=-1) for lane in lanes}
    left = [lane for lane in allocation.left if lane not in allocation.held]
    lane_ids = [*allocation.awake, *left, *allocation.asleep, *allocation.parked, *allocation.held]
    awake = {*allocation.awake, *left}
    chosen_keys = {
        call: json.dumps({names[group]: names[member] for group, member in chosen.items()})
        for call, chosen in allocation.chosen.items()
    }
    key_ids = sorted({*allocation.openings, *(key for _, key, _ in slots if key is not None)})
    return dropped, sql.ask(
        "admit_calls",
        Admitted,
        {
            "now": now,
            "waiting": State.AVAILABLE.value,
            "calls": allocation.admitted,
            "chosen_keys": [chosen_keys.get(call) for call in allocation.admitted],
            "lease": lease,
            "slot_call": [call for call, _, _ in slots],
            "slot_key": [key for _, key, _ in slots],
            "slot_cost": [cost for _, _, cost in slots],
            "lane": lane_ids,
            "lane_awake": [lane in awake for lane in lane_ids],
            "lane_parked": [allocation.parked.get(lane) for lane in lane_ids],
            "lane_held": [lane in allocation.held for lane in lane_ids],
            "lane_turn": [turn if (turn := turns[lane]) >= 0 else None for lane in lane_ids],
            "key": key_ids,
            "key_stopped": [key in allocation.openings for key in key_ids],
            "key_opens": [allocation.openings.get(key) for key in key_ids],
        },
    )


def _settle_others(allocation: Allocation, *, now: datetime | None) -> list[Dropped]:
    """Drop, mark as oversized or put off the calls that were decided and not admitted; return those dropped."""
    dropped: list[Dropped] = []
    if allocation.dropped:
        calls, keys = zip(*allocation.dropped, strict=True)
        params = {"calls": list(calls), "keys": list(keys), "waiting": State.AVAILABLE.value, "now": now}
        dropped = sql.fetch("drop_calls", Dropped, params)
    if allocation.oversized:
        calls, keys, costs = zip(*allocation.oversized, strict=True)
        params = {"calls": list(calls), "keys": list(keys), "costs": list(costs), "waiting": State.AVAILABLE.value}
        sql.change("mark_oversized", params)
    if allocation.rescheduled:
        calls, times = zip(*allocation.rescheduled, strict=True)
        sql.change("reschedule_calls", {"calls": list(calls), "at": list(times), "waiting": State.AVAILABLE.value})
    return dropped
