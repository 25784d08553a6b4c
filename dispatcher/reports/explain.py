"""Which calls hold a key or wait for it, and what a call spends."""

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from django.db.models import Q
from django.db.models.functions import Coalesce

from dispatcher import sql
from dispatcher.models import CallQueue, RateLimitKey, Slot
from dispatcher.states import State


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
    def state_label(self) -> str:
        """The state, for people."""
        return State(self.state).label

    @property
    def place(self) -> Place:
        """Where the next page of waiting calls goes on."""
        return Place(self.priority, self.position, self.lane_id)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a call costs of a key."""

    name: str
    cost: int
    chosen: str | None
    """If it is a group, the key that the latest take chose."""


def waiting_calls(name: str, *, after: Place | None = None, most: int = 100) -> list[KeyCall]:
    """Return the calls that wait for a key, the first in line first, after the place where a page ended.

    Lanes of one priority take turns, so between lanes the order of starts may differ.
    """
    priority, position, lane = after or (None, None, None)
    params = {"name": name, "priority": priority, "position": position, "lane": lane, "most": most}
    return sql.fetch("report_waiting", KeyCall, params)


def calls_in_flight(name: str, *, most: int = 100) -> list[KeyCall]:
    """Return the first calls that hold slots of a key, in order of id."""
    fields = ("id", "task", "state", "queue", "priority", "position", "lane_id", "attempt", "created_at")
    slots = Slot.objects.filter(key__name=name).annotate(since=Coalesce("started_at", "call__dispatched_at"))
    rows = slots.order_by("call_id").values_list("cost", "since", *(f"call__{field}" for field in fields))[:most]
    return [KeyCall(cost=cost, since=since, **dict(zip(fields, of, strict=True))) for cost, since, *of in rows]


def costs(call: UUID) -> list[Cost]:
    """Return the keys that a call spends, its queue's own included, and what it costs of each."""
    calls = CallQueue.objects.select_related("lane").only("queue", "costs", "chosen_keys", "placement", "lane__key_ids")
    if (found := calls.filter(id=call).first()) is None:
        return []
    # Keys that a call without a lane names may not exist yet.
    named = () if found.lane else (found.placement or {}).get("names", ())
    keys = RateLimitKey.objects.filter(
        Q(id__in=found.lane.key_ids if found.lane else ()) | Q(name=f"queue:{found.queue}")
    )
    names, chosen = {*named, *keys.values_list("name", flat=True)}, found.chosen_keys or {}
    return [Cost(name=name, cost=found.costs.get(name, 1), chosen=chosen.get(name)) for name in sorted(names)]
