"""Feed: record what ended, admit and start what may start, in two statements of one transaction and one trip.

The plain case: calls that cost 1 of each key, keys with a concurrency limit or a window. What else there is comes back
as `left`: an ordinary pass serves it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from dispatcher import sql
from dispatcher.conf import conf
from dispatcher.limits.policy import BUCKETS
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
    other: list[int]
    """Freed keys that lanes of other queues wait for first."""
    chosen_lanes: str
    locked_keys: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """A call that was started; without an id none was. The lists and counts are the same in each row."""

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
    asleep: list[int]
    left_lanes: int
    parked_lanes: int
    held_lanes: int
    """Lanes that go on."""
    full_keys: list[int]
    full_held: list[int]
    open_keys: list[int]
    """Keys with room left on which lanes are parked that the step did not look at."""
    is_counted: bool


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What one step did."""

    chosen: Chosen
    rows: Sequence[Row]


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
) -> Taken:
    """Record these ends, and start up to `room` calls of these direct queues whose tasks the worker knows.

    slack: how much later than its start a call may begin.
    """
    settings = conf()
    where = {"queues": list(queues), "most": room + SPARE_LANES, "keys": list(keys), "avoid": list(avoid)}
    limits = {
        "ramp": settings.ramp,
        "margin": settings.margin,
        "lease": settings.run_lease,
        "buckets": BUCKETS,
        "slack": slack,
        "waiting": State.AVAILABLE.value,
    }
    with sql.short_transaction():
        chosen = sql.ask("finish_and_choose", Chosen, {**ends, **where})
        started = sql.ask(
            "start_chosen",
            Row,
            {"worker": worker, "room": room, "tasks": list(tasks), "avoid": list(avoid), **limits},
        )
    return Taken(chosen=chosen.row(), rows=started.rows())


def tune() -> None:
    """Tune this thread's connection for steps; behind a pooler each transaction is tuned."""
    sql.ask("tune_feed", object, {"is_local": False})
