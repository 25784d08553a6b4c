"""The table of contents: the verbs of the dispatcher, each composed of the steps in `lifecycle`."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from time import monotonic, sleep
from typing import Any, assert_never
from uuid import UUID

from django.db import DatabaseError, transaction

from dispatcher import attempt, fields, sql
from dispatcher.calls import Call
from dispatcher.conf import conf
from dispatcher.errors import CallInvalid, KeyNotFound, WorkerLost
from dispatcher.lifecycle import (
    admit,
    claim,
    control,
    due,
    finish,
    publish,
    retention,
    run,
)
from dispatcher.lifecycle import (
    recover as recovery,
)
from dispatcher.lifecycle import send as sending
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.policy import Policy
from dispatcher.states import State

logger = logging.getLogger(__name__)

CALL_DATA_TASK = "dispatcher.call"
"""The built-in task that runs a call's `call_data`."""

_HAND_OVER = 10
"""The most calls that one release admits; what is left is the next release's, or the tick's."""
_AT_ONCE = 50
"""The most calls that one pass of a sender admits."""
_OVERLAP = 1.2
"""How many ticks one run lasts: the next one starts a little late, and what falls due meanwhile is served."""
_FRUITLESS = 3
_SWEEP = 1_000


# What callers do


def send(calls: Sequence[Call]) -> list[CallQueue]:
    """Write calls, all or none, and dispense their lanes after the commit. Raises CallInvalid or PolicyInvalid."""
    drafts = [_draft(call) for call in calls]
    if len(drafts) == 1 and not sql.connection().in_atomic_block:
        written = [sending.write_one(drafts[0])]
        admitted = [call for call in written if call.ticket is not None]
        transaction.on_commit(partial(publish.publish, admitted), using=conf().database, robust=True)
    else:
        written = sending.write(drafts)
    _after_commit({call.lane_id for call in written if call.state == State.AVAILABLE})
    return written


def declare(name: str, limits: Mapping[str, Any]) -> RateLimitKey:
    """Make a key if it does not exist, and return it as it is stored. Raises PolicyInvalid or CallInvalid."""
    sending.make_keys({fields.key_name(name): Policy.parse(limits)})
    return RateLimitKey.objects.using(conf().database).get(name=name)


# What moves calls


def dispense(
    *,
    lanes: Collection[int] = (),
    keys: Collection[int] = (),
    awake: bool = False,
    most: int | None = None,
    total: int | None = None,
    until: float | None = None,
    now: datetime | None = None,
) -> int:
    """Admit what may go, publish it, and look again until nothing is left; return how many were admitted.

    lanes, keys, awake, most: see lifecycle.admit. What is left after `total` calls, or after the monotonic time
    `until`, is left to the next that comes along.
    """
    admitted = fruitless = 0
    while True:
        made = admit.admit(lanes=lanes, keys=keys, awake=awake, most=most, now=now)
        publish.publish(made.calls, now=now)
        admitted += len(made.calls)
        fruitless = 0 if made.has_moved else fruitless + 1
        again = admit.look_again(made)
        lanes, keys = again.lanes, again.keys
        if not (lanes or keys or (awake and made.has_moved)):
            return admitted
        is_over = (until is not None and monotonic() > until) or (total is not None and admitted >= total)
        if is_over or fruitless == _FRUITLESS:
            _leave(lanes, keys)
            return admitted


def tick(*, now: datetime | None = None) -> int:
    """Serve what time has brought, and what it brings within the tick; return how many calls were admitted.

    Any number may run at once. Without a backlog that time opens, it returns at once.
    """
    settings = conf()
    until = monotonic() + settings.tick.total_seconds() * _OVERLAP
    sweep()
    admitted = 0
    while True:
        due.wake_due(now=now)
        due.discard_expired(now=now)
        publish.publish(publish.unpublished(now=now), now=now)
        admitted += dispense(keys=due.due_keys(now=now), awake=True, until=until, now=now)
        wait = due.next_due(now=now)
        if wait is None or now is not None or monotonic() + wait.total_seconds() >= until:
            return admitted
        sleep(max(wait, settings.min_pause).total_seconds())


def execute(call_id: UUID, ticket: UUID, task: Callable[[], Any]) -> run.Outcome | claim.Refused | None:
    """Claim, run, finish, and hand the room on; return how the attempt ended.

    Refused: nothing was run. None: it ran, but its ticket was replaced meanwhile, and the outcome was dropped.
    """
    claimed = attempt.claim_in_time(call_id, ticket)
    if isinstance(claimed, claim.Refused):
        _refuse(claimed, call_id, ticket)
        return claimed
    outcome = run.run(task)
    released = attempt.finish_as(call_id, ticket, outcome, claimed)
    if released is None:
        return None
    try:
        hand_over(released.keys)
    except DatabaseError:
        # The outcome is recorded, and stands; the sweep of the next tick finds the room that was not handed on.
        logger.exception("the room of call %s was not handed on", call_id)
    return attempt.settle(outcome, released)


def hand_over(keys: Collection[int]) -> int:
    """Let the calls in that a release of these keys has made room for; return how many."""
    openable = admit.openable(keys)
    if not openable.keys and not openable.has_awake:
        return 0
    return dispense(keys=openable.keys, awake=openable.has_awake, most=_HAND_OVER, total=_HAND_OVER)


def lose(call_id: UUID, ticket: UUID, error: BaseException) -> bool:
    """End an attempt whose process is known to be gone; return whether the ticket still held the call."""
    with sql.atomic():
        released = attempt.lost(call_id, ticket, error)
        attempt.wake([released] if released else [])
    if released is not None:
        dispense(lanes=[released.lane_id], keys=released.keys)
    return released is not None


def fail(call_id: UUID, ticket: UUID, error: BaseException) -> bool:
    """Record a failed attempt that never ran its task; return whether the ticket still held the call."""
    row = CallQueue.objects.using(conf().database).filter(id=call_id, ticket=ticket).values("attempt", "retry").first()
    if row is None:
        return False
    released = finish.fail(call_id, ticket, error=error, attempt=row["attempt"] + 1, policy=row["retry"])
    if released is not None:
        hand_over(released.keys)
    return released is not None


def recover(*, now: datetime | None = None) -> int:
    """Put back the calls whose leases ran out, and trim the windows; return how many calls were put back.

    A call that was never claimed goes back without spending an attempt.
    """
    with sql.atomic():
        found = [
            attempt.lost(call.call_id, call.ticket, WorkerLost("its lease ran out without a heartbeat"), now=now)
            for call in recovery.expired(now=now)
        ]
        put_back = [released for released in found if released is not None]
        attempt.wake(put_back)
    if put_back:
        logger.warning("%d calls were put back: their leases had run out", len(put_back))
        lanes = {released.lane_id for released in put_back}
        dispense(lanes=lanes, keys={key for released in put_back for key in released.keys}, awake=True, now=now)
    retention.trim_windows(now=now)
    return len(put_back)


class _Sweep:
    """Where this process's next sweep goes on."""

    lane = 0
    key = 0


def sweep() -> int:
    """Wake what nobody would serve, and report how much; expected: 0.

    That is what a sender or a finish leaves that dies half way: lanes that sleep over waiting calls, and keys with
    room that lanes are parked on.
    """
    lanes, keys = recovery.sweep_lanes(_Sweep.lane, _SWEEP), recovery.sweep_keys(_Sweep.key, _SWEEP)
    _Sweep.lane, _Sweep.key = lanes.last, keys.last
    mended = recovery.wake(lanes.forgotten) if lanes.forgotten else 0
    if keys.forgotten:
        dispense(keys=keys.forgotten)
        mended += len(keys.forgotten)
    if mended:
        logger.info("the sweep woke %d lanes and keys", mended)
    return mended


def cleanup(*, now: datetime | None = None) -> int:
    """Delete ended calls past their retention; return how many."""
    return retention.delete_ended(now=now)


# What people do


def limit(name: str, limits: Mapping[str, Any]) -> None:
    """Store other limits for a key, in force at once. Raises PolicyInvalid or KeyNotFound."""
    dispense(keys=[control.limit(name, limits)])


def pause(name: str) -> None:
    """Let nothing start under a key until it is resumed; what runs goes on. Raises KeyNotFound."""
    control.pause(name)


def resume(name: str) -> None:
    """Let a key's calls start again, after a pause or a block. Raises KeyNotFound."""
    dispense(keys=[control.resume(name)])


def block(name: str, wait: timedelta) -> None:
    """Let nothing start under a key for this long; a longer block stands. Raises KeyNotFound."""
    if not control.block(wait, names=[name]):
        raise KeyNotFound(name)


def override(name: str, *, until: datetime, **limits: Any) -> None:
    """Put other limits (concurrency, rate, throttle) in force until a time; those not named stay as they are.

    Raises PolicyInvalid naming the field, or KeyNotFound.
    """
    dispense(keys=[control.override(name, limits, until)])


def end_override(name: str) -> None:
    """Put a key's own limits in force again."""
    dispense(keys=control.end_override(name))


def cancel(calls: Iterable[UUID]) -> list[UUID]:
    """End calls that have not started, and return them; those that run, or have ended, are left as they are."""
    done = control.cancel(calls)
    dispense(lanes=done.lanes, keys=done.keys)
    return done.calls


def retry(calls: Iterable[UUID]) -> list[UUID]:
    """Let ended calls wait again from attempt 0, and return them."""
    return _moved(control.retry(calls))


def run_now(calls: Iterable[UUID]) -> list[UUID]:
    """Move calls to the front of their lanes, whatever time they were sent for, and return them; limits still hold."""
    return _moved(control.run_now(calls))


# How the verbs above hang together


def _draft(call: Call) -> sending.Draft:
    if (call.task is None) == (call.call_data is None):
        raise CallInvalid("task", "give either a task or call_data, such as {'method': 'post', 'params': {...}}.")
    task, queue = publish.route(call.task if call.task is not None else CALL_DATA_TASK, call.args, call.kwargs)
    return sending.draft(call, task=task, queue=call.queue if call.queue is not None else queue)


def _refuse(refused: claim.Refused, call_id: UUID, ticket: UUID) -> None:
    match refused:
        case claim.Refused.STALE:
            released = None
        case claim.Refused.CLOSED:
            released = attempt.put_back(call_id, ticket)
        case claim.Refused.EXPIRED:
            released = finish.expire(call_id, ticket)
        case _:
            assert_never(refused)
    if released is not None:
        dispense(lanes=[released.lane_id], keys=released.keys)


def _moved(moved: Sequence[control.Moved]) -> list[UUID]:
    dispense(lanes={row.lane_id for row in moved})
    return [row.id for row in moved]


def _after_commit(lanes: set[int]) -> None:
    """Dispense these lanes when the caller's transaction has committed, together with all others that it sent to."""
    if not lanes:
        return
    connection = sql.connection()
    waiting: set[int] = connection.__dict__.setdefault("dispatcher_lanes", set())
    waiting |= lanes

    def serve() -> None:
        sent_to = frozenset(waiting)
        waiting.clear()
        if sent_to and (unparked := admit.unparked(sent_to)):
            dispense(lanes=unparked, most=_AT_ONCE, total=conf().batch)

    transaction.on_commit(serve, using=conf().database, robust=True)


def _leave(lanes: Collection[int], keys: Collection[int]) -> None:
    """Leave lanes and keys to the next pass that comes along."""
    if lanes:
        recovery.wake(lanes)
    if keys:
        sql.change("leave_open", {"keys": list(keys), "now": None})
