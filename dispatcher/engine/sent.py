"""Sent: write calls, and do what follows their commit: give them lanes, wake idle workers, publish the broker's."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from math import inf
from time import monotonic
from typing import Final
from uuid import UUID

from dispatcher import lanes, sql
from dispatcher.engine import dispenser
from dispatcher.lifecycle import place as placing
from dispatcher.lifecycle import send, wake
from dispatcher.models import CallQueue
from dispatcher.states import State

_SENT = "dispatcher_sent"
"""The attribute of a connection that holds what its transaction has sent."""
_LONG_S: Final = 0.01
"""After how long a process that has marked itself idle may have looked again: it looks until 20 ms after the mark."""


@dataclass
class _Sent:
    """The first call of each lane, and those without a lane."""

    firsts: dict[int, UUID] = field(default_factory=dict)
    unplaced: set[UUID] = field(default_factory=set)
    seen_at: float = inf
    """When the first of them saw that no process need be woken; -inf: one is to be."""


def write(drafts: Sequence[send.Draft]) -> list[CallQueue]:
    """Write checked calls, and serve them after their commit. Raises UnknownKey or CallNeverRuns."""
    sent = send.write(drafts)
    after_commit(sent.calls, seen_at=sent.seen_at)
    return sent.calls


def after_commit(calls: Iterable[CallQueue], *, seen_at: float = -inf) -> None:
    """Serve calls after the commit, together with the others of the transaction, once; not those that have to wait.

    seen_at: see send.Sent. No process is woken where the commit came so soon that one which has become idle
    meanwhile looks again by itself.
    """
    added = [call for call in calls if call.lane_id is None or call.state == State.AVAILABLE]
    if not added:
        return
    connection = sql.connection()
    if not connection.run_on_commit:
        # These are left from a transaction that was rolled back.
        connection.__dict__.pop(_SENT, None)
    sent: _Sent = connection.__dict__.setdefault(_SENT, _Sent())
    sent.seen_at = min(sent.seen_at, seen_at)
    for call in added:
        if call.lane_id is None:
            sent.unplaced.add(call.id)
        else:
            sent.firsts.setdefault(call.lane_id, call.id)

    def serve_once() -> None:
        firsts, unplaced = sent.firsts.values() if monotonic() - sent.seen_at > _LONG_S else (), sent.unplaced
        sent.firsts, sent.unplaced, sent.seen_at = {}, set(), inf
        serve(firsts, unplaced)

    sql.after_commit(serve_once)


def serve(firsts: Collection[UUID] = (), unplaced: Collection[UUID] = (), *, lock_wait: timedelta | None = None) -> int:
    """Give calls lanes that have none, wake idle workers, and dispense the broker's queues; return how many got one.

    firsts: of each lane the first of the calls that came to it. lock_wait: see place.place.
    """
    placed = placing.place(unplaced, lock_wait=lock_wait or lanes.LOCK_WAIT)
    ready = {call.lane_id: call.id for call in reversed(placed) if call.state == State.AVAILABLE}
    firsts = [*firsts, *ready.values()]
    # No idle worker takes the calls of a queue that is published.
    if firsts and (queues := [woken.queue for woken in wake.ask(calls=firsts).rows() if woken.is_published]):
        dispenser.dispense_briefly(queues=queues)
    return len(placed)
