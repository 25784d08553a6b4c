"""Sent: write calls, and do what follows their commit: give them lanes, wake idle workers, publish the broker's."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from uuid import UUID

from dispatcher import lanes, sql
from dispatcher.engine import dispenser
from dispatcher.lifecycle import place as placing
from dispatcher.lifecycle import send, wake
from dispatcher.lifecycle.control import Moved
from dispatcher.models import CallQueue
from dispatcher.states import State

_SENT = "dispatcher_sent"
"""The attribute of a connection that holds what its transaction has sent."""


@dataclass(frozen=True)
class _Sent:
    """The first call of each lane, and those without a lane."""

    firsts: dict[int, UUID] = field(default_factory=dict)
    unplaced: set[UUID] = field(default_factory=set)


def write(drafts: Sequence[send.Draft]) -> list[CallQueue]:
    """Write checked calls, and serve them after their commit. Raises UnknownKey or CallNeverRuns."""
    sent = send.write(drafts)
    is_woken = sent.dispense is not None
    after_commit(call for call in sent.calls if call.lane_id is None or not is_woken)
    if sent.dispense:
        sql.after_commit(partial(dispenser.dispense_briefly, queues=sent.dispense))
    return sent.calls


def after_commit(calls: Iterable[CallQueue | Moved]) -> None:
    """Serve calls after the commit, together with the others of the transaction, once; not those that have to wait."""
    added = [call for call in calls if call.lane_id is None or call.state == State.AVAILABLE]
    if not added:
        return
    connection = sql.connection()
    if not connection.run_on_commit:
        # These are left from a transaction that was rolled back.
        connection.__dict__.pop(_SENT, None)
    sent: _Sent = connection.__dict__.setdefault(_SENT, _Sent())
    for call in added:
        if call.lane_id is None:
            sent.unplaced.add(call.id)
        else:
            sent.firsts.setdefault(call.lane_id, call.id)

    def serve_once() -> None:
        firsts, unplaced = [*sent.firsts.values()], {*sent.unplaced}
        sent.firsts.clear()
        sent.unplaced.clear()
        serve(firsts, unplaced)

    sql.after_commit(serve_once)


def serve(firsts: Collection[UUID] = (), unplaced: Collection[UUID] = (), *, lock_wait: timedelta | None = None) -> int:
    """Give calls lanes that have none, wake idle workers, and dispense the broker's queues; return how many got one.

    firsts: of each lane the first of the calls that came to it. lock_wait: see place.place.
    """
    placed = placing.place(unplaced, lock_wait=lock_wait or lanes.LOCK_WAIT)
    ready = {row.lane_id: row.id for row in reversed(placed) if row.state == State.AVAILABLE}
    firsts = [*firsts, *ready.values()]
    if firsts and (queues := wake.dispensed(wake.ask(calls=firsts))):
        dispenser.dispense_briefly(queues=queues)
    return len(placed)
