"""Which calls hold a key or wait for it, and why a call waits."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from dispatcher import sql
from dispatcher.conf import conf, counting
from dispatcher.states import State

MANY: Final = 10_000
"""How far calls ahead of another are counted."""


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
class Wait:
    """Why a call waits: what stopped its lane, if something did, and how many of the lane go before it."""

    oversized_for: str | None
    """The key whose limits in force never allow its cost: the call waits alone, and its lane goes on."""
    oversized_cost: int | None
    """What it costs of that key."""
    stopped_by: str | None
    """The key that its lane is parked on."""
    members: int | None
    """If that key is a group, how many keys it could choose."""
    has_room: bool
    """Whether that key has room by now: the lane's turn comes."""
    opens_at: datetime | None
    """When time alone opens that key."""
    limited_by: str | None
    """A key with a limit per worker, if the lane waits for a worker that holds less of it."""
    delivery: str
    """How the calls of the queue reach workers."""
    is_served: bool
    """Whether a live Celery worker serves the call's queue."""
    is_worker_idle: bool
    """Whether a live worker that takes the calls of the queue directly is idle."""
    is_full: bool
    """Whether enough calls of the queue are on the way to its workers."""
    queue: str
    task: str
    is_known: bool
    """Whether a live worker of the queue knows the task, as far as the workers have registered their tasks."""
    returns: int
    """How often in a row it was published and came back without a start."""
    until: datetime | None
    """When a call that came back is tried again, unless a worker that knows its task comes before."""
    since: datetime
    is_placed: bool
    """Whether it has a lane; else its keys or its lane are still to be made."""
    ahead: int
    """Counted up to MANY."""
    at: datetime


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


def calls_in_flight(name: str, *, after: UUID | None = None, most: int = 100) -> list[KeyCall]:
    """Return the calls that hold slots of a key, in order of id, after the one where the last page ended."""
    return sql.fetch("report_in_flight", KeyCall, {"name": name, "after": after, "most": most})


def costs(call: UUID) -> list[Cost]:
    """Return the keys that a call spends, its queue's own included, and what it costs of each."""
    return sql.fetch("report_costs", Cost, {"call": call})


def why_waiting(call: UUID, *, now: datetime | None = None) -> Wait | None:
    """Return why a call waits; None if it does not wait."""
    params = {"call": call, "most": MANY, "ahead": conf().dispatch_ahead, **counting(), "now": now}
    found = sql.fetch("report_wait", Wait, params)
    return found[0] if found else None
