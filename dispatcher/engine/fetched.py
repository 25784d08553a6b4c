"""Queues that workers fetch from over HTTP: the plain step of a fetch, and tasks of Celery's that are sent to one."""

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

from celery import current_app

from dispatcher import event_log, sql
from dispatcher.conf import conf
from dispatcher.engine import dispenser
from dispatcher.lifecycle import admit, feed
from dispatcher.models import CallQueue, Queue
from dispatcher.states import Delivery, State

logger = logging.getLogger(__name__)

_seen: set[tuple[str, str]] = set()
"""The tasks and queues that this process has looked at."""


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

    lease: how long a call counts as running without a heartbeat. avoid: keys whose lanes are left out. after: the step
    before, of the same fetch; without one it starts none if calls are due. waits: for the first lane, if another
    transaction has locked it.
    """
    room = min(most, _HEADS // (after.lanes if after is not None and after.lanes else _MOST_LANES))
    lanes = min(max(room + feed.SPARE_LANES, _LEAST_LANES), _MOST_LANES)
    # A pass writes into the event log which calls a limit stops.
    fetched = feed.fetch(
        queue,
        worker=worker,
        room=room,
        lanes=lanes,
        lease=lease,
        avoid=avoid,
        may_park=not event_log.is_kept(),
        looks=after is None,
        waits=waits,
    )
    chosen, first = fetched.chosen, fetched.rows[0]
    started = [row.id for row in fetched.rows if row.id is not None]
    calls: Sequence[CallQueue] = ()
    asleep = [*first.asleep, *chosen.asleep]
    if started or asleep or first.full_keys:
        with sql.together():
            full = dict(zip(first.full_keys, first.full_held, strict=True))
            again = admit.ask_again(asleep=asleep, full=full)
            asked = ask(started)
        calls, found = _in_order(asked, started), again.row()
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


def read(calls: Sequence[UUID]) -> list[CallQueue]:
    """Return these calls in their order, without those that do not exist; fields that no job has are deferred."""
    return _in_order(ask(calls), calls) if calls else []


def ask(calls: Sequence[UUID]) -> sql.Asked[CallQueue]:
    """Ask for these calls, in any order (see read)."""
    return sql.ask("read_calls", CallQueue, {"calls": list(calls)})


def _in_order(asked: sql.Asked[CallQueue], calls: Sequence[UUID]) -> list[CallQueue]:
    found = {row.id: row for row in asked.rows()}
    return [found[call] for call in calls if call in found]


def leave(lanes: Iterable[feed.LockedLane]) -> None:
    """Dispense lanes that a fetch has locked in vain: meanwhile, passes and senders left them to it."""
    for lane in lanes:
        parked_on = [] if lane.parked_on_id is None else [lane.parked_on_id]
        dispenser.dispense_briefly(lanes=[lane.id], keys=parked_on)


def report(sent: Iterable[CallQueue]) -> None:
    """Log, once per process, each of Celery's tasks that was sent to a queue that no worker of Celery's serves."""
    waiting = {(call.task, call.queue) for call in sent if call.state == State.AVAILABLE}
    new = {(task, queue) for task, queue in waiting - _seen if task in current_app.tasks}
    if not new:
        return
    _seen.update(new)
    fetched = Queue.objects.using(conf().database).filter(name__in={queue for _, queue in new}, delivery=Delivery.HTTP)
    names = set(fetched.values_list("name", flat=True))
    for task, queue in sorted(new):
        if queue in names:
            logger.warning(
                "task %s was sent to queue %r, which workers fetch from over HTTP: no worker of Celery's runs it. "
                "Send it to another queue, or let Celery serve this one (admin, Queues).",
                task,
                queue,
            )
