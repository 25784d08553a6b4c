"""Feed: record what ended, admit and start what may start, in two statements of one transaction and one trip.

So do workers that fetch over HTTP, whose ends are reported apart.

The plain case: calls that cost 1 of each key, keys with a concurrency limit or a window. What else there is comes back
as `left`: an ordinary pass serves it.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from dispatcher import sql
from dispatcher.conf import conf
from dispatcher.limits.policy import BUCKETS
from dispatcher.limits.turns import Share
from dispatcher.states import State

SPARE_LANES: Final = 2
"""How many lanes more than calls a step looks at: the first of them may have no call, or no room."""


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """What the first statement did: the calls whose ends it recorded, the keys that they freed, the lanes it locked."""

    calls: list[UUID]
    keys: list[int]
    lanes: int
    busy: list[int]
    """Keys that another transaction has locked, so that their lanes were left out."""
    asleep: list[int]
    """Lanes that it locked and did not choose, and that sleep by now: others have left them to this step meanwhile."""
    chosen_lanes: str
    locked_keys: str


@dataclass(frozen=True, kw_only=True)
class StartedCall:
    """A call that was started; without an id none was. What is not of the call is the same in each row."""

    start_at: datetime
    id: UUID | None
    ticket: UUID | None
    claim: UUID | None
    task: str | None
    args: list[Any] | None
    kwargs: dict[str, Any] | None
    call_data: dict[str, Any] | None
    headers: dict[str, Any] | None
    options: dict[str, Any] | None
    queue: str | None
    attempt: int | None
    retry: Mapping[str, Any] | None
    key_ids: list[int] | None
    full_keys: list[int]
    """Keys on which lanes are parked, and of which other workers hold slots, too."""
    full_held: list[int]


@dataclass(frozen=True, kw_only=True)
class Row(StartedCall):
    """What the second statement did."""

    is_followed: bool | None
    """Whether its lane is parked now."""
    asleep: list[int]
    left_lanes: int
    parked: list[int]
    open_keys: list[int]
    """Keys with room left on which lanes are parked that the step did not look at."""
    reached_keys: list[int]
    """Keys of which the worker holds as much as one worker may, with lanes that others may serve."""
    is_counted: bool


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A key that is open for the lane that is parked first on it, after a step."""

    key: int
    lane: int
    is_others: bool
    """Whether the worker leaves the lane to others."""


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What one step did."""

    chosen: Chosen
    rows: Sequence[Row]
    opened: Sequence[Opened]


@dataclass(frozen=True, kw_only=True)
class HandedOver(StartedCall):
    """What a hand-over did: the end was recorded if `calls` has it."""

    calls: list[UUID]
    freed: list[int]
    """The keys whose room the end gave back."""
    asleep: list[int]
    """The lane that was locked, if it sleeps by now: others have left it to this step meanwhile."""


def hand_over(ends: Mapping[str, Any], *, worker: UUID, queues: Sequence[str], tasks: Sequence[str]) -> HandedOver:
    """Record one end, and start the next call with its slots, if that is all that there is to decide."""
    settings = conf()
    params = {"worker": worker, "queues": list(queues), "tasks": list(tasks), "waiting": State.AVAILABLE.value}
    with sql.short_transaction():
        asked = sql.ask(
            "hand_over_slots", HandedOver, {**ends, **params, "ramp": settings.ramp, "lease": settings.run_lease}
        )
    return asked.row()


def take(
    ends: Mapping[str, Any],
    *,
    worker: UUID,
    queues: Sequence[str],
    tasks: Sequence[str],
    room: int,
    keys: Collection[int],
    avoid: Collection[int],
    slack: timedelta,
    shares: Mapping[str, Share],
    freed: Collection[int],
) -> Taken:
    """Record these ends, and start up to `room` calls of these direct queues whose tasks the worker knows.

    freed: the keys of the calls that ended. slack: how much later than its start a call may begin. shares: the turns of
    the queues by their weights.
    """
    where = {"queues": list(queues), "most": room + SPARE_LANES, "keys": list(keys), "avoid": list(avoid)}
    who = {"worker": worker, "tasks": list(tasks), "lease": conf().run_lease, "is_fetch": False}
    start = {**who, "room": room, "avoid": list(avoid), "slack": slack, "may_park": True}
    opened: sql.Asked[Opened] | None = None
    with sql.short_transaction() as commit:
        if shares:
            turns = {"shares": json.dumps([{"queue": queue, **vars(share)} for queue, share in shares.items()])}
            chosen = sql.ask("finish_and_choose_by_weight", Chosen, {**ends, **where, **turns})
            started = _start("start_chosen_by_weight", {**start, **turns})
        else:
            chosen = sql.ask("finish_and_choose", Chosen, {**ends, **where})
            started = _start("start_chosen", start)
        commit()
        if freed or keys:
            opened = find_opened({*freed, *keys}, queues=queues, avoid=avoid)
    return Taken(chosen=chosen.row(), rows=started.rows(), opened=opened.rows() if opened is not None else ())


def find_opened(keys: Collection[int], *, queues: Sequence[str], avoid: Collection[int]) -> sql.Asked[Opened]:
    """Ask which of these keys are open for lanes parked on them; after the commit of a step.

    keys: those whose room it gave back, and those that it was made for. avoid: as in `take`.
    """
    where = {"keys": list(keys), "queues": list(queues), "avoid": list(avoid)}
    return sql.ask("find_opened", Opened, {**where, "now": None})


@dataclass(frozen=True, kw_only=True)
class Fetchable:
    """What the first statement of a fetch did: the lanes that it locked; none if calls are due (`is_due`)."""

    lanes: int
    busy: list[int]
    """Keys that another transaction has locked, so that their lanes were left out."""
    asleep: list[int]
    """As of `Chosen`."""
    is_due: bool
    chosen_lanes: str
    locked_keys: str


@dataclass(frozen=True, kw_only=True)
class LockedLane:
    """A lane that a fetch has waited for and locked."""

    id: int
    parked_on_id: int | None


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """What one step of a fetch did."""

    chosen: Fetchable
    rows: Sequence[Row]
    waited: Sequence[LockedLane]


def fetch(
    queue: str,
    *,
    worker: UUID | None,
    room: int,
    lanes: int,
    lease: timedelta,
    avoid: Collection[int] = (),
    may_park: bool,
    looks: bool,
    waits: bool,
) -> Fetched:
    """Start up to `room` calls of a queue for a worker that fetches, of that many lanes at the most.

    lease: how long a call counts as running without a heartbeat. avoid: keys whose lanes are left out. may_park:
    whether a lane that a full key stops is parked, and not left. looks: start none if calls are due. waits: for the
    first lane, if another transaction has locked it.
    """
    who = {"worker": worker, "tasks": None, "lease": lease, "is_fetch": True}
    left_out = {"avoid": list(avoid)}
    waited: sql.Asked[LockedLane] | None = None
    with sql.short_transaction(is_tuned=False):
        if waits:
            waited = wait_for_lane(queue)
        chosen = sql.ask("choose_fetchable", Fetchable, {"queue": queue, "most": lanes, "looks": looks, **left_out})
        how = {**who, "room": room, **left_out, "slack": timedelta(0), "may_park": may_park}
        started = _start("start_chosen", how)
    return Fetched(chosen=chosen.row(), rows=started.rows(), waited=waited.rows() if waited is not None else ())


def wait_for_lane(queue: str) -> sql.Asked[LockedLane]:
    """Lock the lane of a queue that a fetch takes first, for the caller's transaction; wait for it."""
    return sql.ask("wait_for_lane", LockedLane, {"queue": queue})


def _start(statement: str, params: Mapping[str, Any]) -> sql.Asked[Row]:
    settings = conf()
    limits = {"ramp": settings.ramp, "margin": settings.margin, "buckets": BUCKETS}
    return sql.ask(statement, Row, {**params, **limits, "waiting": State.AVAILABLE.value})


def tune() -> None:
    """Tune this thread's connection for steps; behind a pooler each transaction is tuned."""
    sql.ask("tune_feed", object, {"is_local": False})
