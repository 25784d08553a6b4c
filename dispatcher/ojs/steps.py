"""The plain step of a fetch: start calls of a queue that workers fetch from, as many as have room."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

from dispatcher import event_log, sql
from dispatcher.conf import conf
from dispatcher.engine import dispenser
from dispatcher.lifecycle import admit, feed
from dispatcher.models import CallQueue
from dispatcher.ojs import jobs
from dispatcher.ojs.jobs import job_of

_LEAST_LANES: Final = 10
"""How many lanes of a queue a step looks at, at the least: the first of them may be limited."""
_MOST_LANES: Final = 18
_HEADS: Final = 256
"""How many calls a step reads, and locks, of all its lanes together; of each it reads as many as may start."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one plain step of a fetch did."""

    calls: Sequence[CallQueue]
    lanes: int
    """How many lanes it locked."""
    is_due: bool
    """Whether calls are due, so that it started none: they must wait in their lanes first."""
    has_moved: bool
    """Whether another step may find more."""
    has_left: bool
    """Whether there are lanes that only a pass settles."""
    reached: Collection[int] = ()
    """Keys of which the worker holds as much as one worker may, or which only workers with a name may spend."""


def step(
    queue: str,
    *,
    worker: UUID | None,
    most: int,
    lease: timedelta | None,
    avoid: Collection[int] = (),
    after: Step | None = None,
    waits: bool = False,
) -> Step:
    """Start up to `most` calls of a queue for a worker that fetches.

    lease: how long a call counts as running without a heartbeat; None: the call's own, or the setting's. avoid: keys
    whose lanes are left out. after: the step before, of the same fetch; without one it starts none if calls are due.
    waits: for the first lane, if another transaction has locked it.
    """
    room = min(most, _HEADS // (after.lanes if after is not None and after.lanes else _MOST_LANES))
    lanes = min(max(room + feed.SPARE_LANES, _LEAST_LANES), _MOST_LANES)
    # A pass writes into the event log which calls a limit stops.
    fetched = feed.fetch(
        queue,
        worker=worker,
        room=room,
        lanes=lanes,
        lease=lease or conf().visibility,
        avoid=avoid,
        may_park=not event_log.is_kept(),
        looks=after is None,
        waits=waits,
    )
    chosen, first = fetched.chosen, fetched.rows[0]
    tickets = {row.id: row.ticket for row in fetched.rows if row.id is not None and row.ticket is not None}
    started = list(tickets)
    calls: Sequence[CallQueue] = ()
    asleep = [*first.asleep, *chosen.asleep]
    if started or asleep or first.full_keys:
        with sql.together():
            full = dict(zip(first.full_keys, first.full_held, strict=True))
            again = admit.ask_again(asleep=asleep, full=full)
            asked = jobs.ask(started)
        calls, found = jobs.in_order(asked, started), again.row()
        # A lease or a time of its own counts before the worker gets any of them.
        own = [call.id for call in calls if (job := job_of(call)).timeout or (job.visibility and not lease)]
        if own:
            set_leases({call: tickets[call] for call in own}, worker, lease)
        if found.lanes or found.keys:
            dispenser.dispense_briefly(lanes=found.lanes, keys=found.keys)
    leave(lane for lane in fetched.waited if str(lane.id) not in chosen.chosen_lanes.strip("{}").split(","))
    return Step(
        calls=calls,
        lanes=chosen.lanes,
        is_due=chosen.is_due,
        reached=first.reached_keys,
        has_moved=len(started) == room
        or bool(first.reached_keys)
        or (chosen.lanes >= lanes and bool(started or first.asleep or first.parked)),
        has_left=bool(first.left_lanes or (waits and chosen.busy)),
    )


def set_leases(tickets: Mapping[UUID, UUID], worker: UUID | None, lease: timedelta | None) -> None:
    """Set the leases of calls that a worker has just fetched: by what it asked for, the call's own, or the setting.

    tickets: those of the calls, by id.
    """
    who = {"calls": list(tickets), "tickets": list(tickets.values()), "worker": worker}
    sql.ask("set_fetch_leases", object, {**who, "lease": lease, "usual": conf().visibility})


def leave(lanes: Iterable[feed.LockedLane]) -> None:
    """Dispense lanes that a fetch has locked in vain: meanwhile, passes and senders left them to it."""
    for lane in lanes:
        parked_on = [] if lane.parked_on_id is None else [lane.parked_on_id]
        dispenser.dispense_briefly(lanes=[lane.id], keys=parked_on)
