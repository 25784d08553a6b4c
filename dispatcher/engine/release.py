"""Release: record how an attempt ended and let the next call in, in one transaction and one trip.

That is the plain case, see lifecycle.hand_on; what else the release opens is served after the commit.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from uuid import UUID

from dispatcher import event_log, sql
from dispatcher.conf import is_eager
from dispatcher.ending import Ending
from dispatcher.engine import dispenser
from dispatcher.lifecycle import admit, finish, hand_on, publish


@dataclass(frozen=True, kw_only=True)
class Release:
    """What a finish released, and what of it is still to be served."""

    released: finish.Released | None
    calls: Sequence[hand_on.Next] = ()
    """The calls that were admitted with it, to be published."""
    room: admit.ReleasedRoom | None = None
    """What else it has opened; None if no statement has looked."""
    lanes: Collection[int] = ()
    """Lanes to be looked at again: others may have left calls in them to this release."""


def is_possible() -> bool:
    """Whether a finish may let the next call in: in a transaction of its own, with no more to write than that."""
    return not (sql.in_transaction() or event_log.is_kept() or is_eager())


def finish_and_admit(call_id: UUID, ticket: UUID, ended: Ending, *, claim_id: UUID) -> Release:
    """Record how an attempt ended, and admit the next call."""
    with sql.short_transaction(is_tuned=False) as commit:
        finished = finish.ask(call_id, ticket, ended, claim_id=claim_id)
        locked, admitted = hand_on.ask_next(call_id)
        commit()
        # What a pass has parked meanwhile, only a statement after the commit is sure to see.
        sql.tune()
        room = admit.released_room(call=call_id)
    calls = admitted.rows()
    lanes = {*locked.row().asleep, *(call.asleep for call in calls if call.asleep is not None)}
    return Release(released=finished.released(), calls=calls, room=room.row(), lanes=lanes)


def serve(done: Release) -> None:
    """Publish the calls that were admitted, and serve what else the release has opened."""
    if done.released is None:
        return
    if done.room is None:
        dispenser.hand_over(done.released.keys, done.released.lane_id)
        return
    publish.publish(done.calls)
    if done.lanes:
        dispenser.dispense_briefly(lanes=admit.look_again(asleep=[*done.lanes], full={}).lanes)
    dispenser.fill(done.room)
