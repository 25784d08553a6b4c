"""Finish: how attempts ended, as `take` records it; and calls that wait again without an end of their own."""

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, TypeVar
from uuid import UUID

from dispatcher import sql
from dispatcher.conf import conf
from dispatcher.ending import Ending
from dispatcher.models import CallQueue
from dispatcher.request import Changes
from dispatcher.states import TERMINAL, State

T = TypeVar("T")

LOCK_WAIT: Final = timedelta(milliseconds=20)
"""How long what follows waits for a row that another transaction has locked: the caller brings it again."""
FREE: Final = 2
"""How many times in a row a call goes back to its lane at once: a message or a process may be lost by accident."""
_GOES_ON: Final = (State.AVAILABLE, State.SCHEDULED, State.DISPATCHED)
"""The states of a call that another attempt follows."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The attempt of a claim, and how it ended."""

    call_id: UUID
    ticket: UUID
    claim_id: UUID | None
    """The claim's own; None: the attempt of whichever claim holds the call."""
    ending: Ending
    keys: Collection[int] = ()
    """The keys that the call spends."""


def params_of(ends: Sequence[Ended]) -> dict[str, Any]:
    """Return how attempts ended as `take` is given it."""
    return {
        "calls": [each.call_id for each in ends],
        "tickets": [each.ticket for each in ends],
        "claims": [each.claim_id for each in ends],
        "states": [each.ending.next_state.value for each in ends],
        "reasons": _values(each.ending.reason and each.ending.reason.value for each in ends),
        "crashes": _values(each.ending.crashes for each in ends),
        "results": _values(each.ending.result for each in ends),
        "errors": _values(each.ending.error and json.dumps(each.ending.error) for each in ends),
        "waits": _values(each.ending.wait for each in ends),
    }


def _values(found: Iterable[T | None]) -> list[T | None] | None:
    """Return the values as a list; None for one of NULLs alone, in whose place unnest sees NULLs, too."""
    values = [*found]
    return values if any(value is not None for value in values) else None


def is_recorded(ended: Ended) -> bool:
    """Return whether this end is in the database: it may be, where the answer of the trip that brought it was lost.

    Its call may wait again by now, or be dispatched; the next claim takes the place of this one.
    """
    state = ended.ending.state
    states = [state] if state in TERMINAL else [state, *_GOES_ON]
    calls = CallQueue.objects.filter(id=ended.call_id, claim=ended.claim_id, state__in=states)
    return ended.claim_id is not None and calls.exclude(ticket=ended.ticket).exists()


def amend(call_id: UUID, changes: Changes, *, now: datetime | None = None) -> bool:
    """Change what a call is tried again with; return whether it has no lane now, since it goes to another one.

    The caller has ended its attempt in the same transaction.
    """
    return any(sql.fetch("amend_call", bool, {"call": call_id, **asdict(changes), "now": now}))


class Requeue(StrEnum):
    """Why a call waits again without an end of its own (see requeue_call.sql)."""

    UNUSED = "unused"
    STOPPED = "stopped"
    UNDELIVERED = "undelivered"
    LOST = "lost"
    UNKNOWN = "unknown"
    SILENT = "silent"


@dataclass(frozen=True, kw_only=True)
class Requeued:
    """A call that waits again, at once or later, and whether a live worker knows its task."""

    state: str
    queue: str
    task: str
    is_known: bool


def requeue(
    call_id: UUID,
    ticket: UUID,
    reason: Requeue,
    *,
    claim_id: UUID | None = None,
    wait: timedelta | None = None,
    now: datetime | None = None,
) -> Requeued | None:
    """Let a call wait again at the front of its lane, without spending an attempt; None if the ticket is gone.

    claim_id: the only claim whose call this may be, where that is active; any, without one. wait: not before this time
    has passed. What it frees is noted: after the commit the caller dispenses.
    """
    params = {
        "call": call_id,
        "ticket": ticket,
        "reason": reason.value,
        "claim": claim_id,
        "wait": wait,
        "free": FREE,
        "lease": conf().dispatch_lease,
        "now": now,
    }
    return next(iter(sql.fetch("requeue_call", Requeued, params)), None)
