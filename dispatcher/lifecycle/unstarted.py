"""Unstarted: calls that were admitted and came back without a start wait, each time for longer."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from dispatcher import sql
from dispatcher.conf import conf
from dispatcher.states import State

FREE: Final = 2
"""How many times in a row a call goes back to its lane at once: a message or a process may be lost by accident."""
_SOON: Final = timedelta(seconds=0.5)
_FIRST: Final = timedelta(minutes=1)
"""The first wait, or `dispatch_lease` if that is shorter."""
_LONGEST: Final = 12
"""The longest wait in `dispatch_lease`s: an hour by default."""
_BATCH: Final = 1_000
"""The most calls that one statement lets wait in their lanes again."""


@dataclass(frozen=True, kw_only=True)
class Returned:
    """A call that came back: its lane, the keys whose room it gave back, and whether a live worker knows its task."""

    lane_id: int
    state: State
    queue: str
    task: str
    keys: Sequence[int]
    is_known: bool


@dataclass(frozen=True, kw_only=True)
class _Row:
    lane_id: int
    state: str
    queue: str
    task: str
    keys: list[int]
    is_known: bool


def put_back(
    call_id: UUID,
    ticket: UUID,
    *,
    is_unknown: bool = False,
    is_lost: bool = False,
    claim_id: UUID | None = None,
    now: datetime | None = None,
) -> Returned | None:
    """Let an unstarted call wait again, without spending an attempt; None if the ticket is gone or the call started.

    is_unknown: its worker does not know the task. is_lost: its process is gone, so a claim whose start has not come
    counts as not started; by this claim only, if given. The caller wakes an available call's lane in the same
    transaction.
    """
    lease = conf().dispatch_lease
    rows = sql.fetch(
        "return_unstarted",
        _Row,
        {
            "call": call_id,
            "ticket": ticket,
            "is_unknown": is_unknown,
            "is_lost": is_lost,
            "claim": claim_id,
            "free": FREE,
            "soon": _SOON,
            "first": min(_FIRST, lease),
            "longest": _LONGEST * lease,
            "now": now,
        },
    )
    if not rows:
        return None
    (row,) = rows
    return Returned(
        lane_id=row.lane_id,
        state=State(row.state),
        queue=row.queue,
        task=row.task,
        keys=row.keys,
        is_known=row.is_known,
    )


def wake(queues: Collection[str], tasks: Collection[str], *, now: datetime | None = None) -> set[int]:
    """Let the returned calls of these queues and tasks go on if a live worker knows the task; return their lanes."""
    lanes: set[int] = set()
    params = {"queues": list(queues), "tasks": list(tasks), "most": _BATCH, "now": now}
    while True:
        woken = sql.fetch("wake_returned", int, params)
        lanes |= set(woken)
        if len(woken) < _BATCH:
            return lanes
