"""The table of contents: the verbs of the dispatcher, each composed of the steps in `lifecycle`."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from time import monotonic
from typing import Any, assert_never
from uuid import UUID, uuid4

from django.db import transaction

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
    heartbeat,
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
from dispatcher.watch import Watch

logger = logging.getLogger(__name__)

CALL_DATA_TASK = "dispatcher.call"
"""The built-in task that runs a call's `call_data`."""

_HAND_OVER = 10
"""The most calls that one release admits; what is left is the next release's, or the tick's."""
REFILL = 100
"""The most calls that one release sends on the way to the workers of its queue."""
_AT_ONCE = 50
"""The most calls that one pass of a sender admits."""
_FRUITLESS = 3
_SWEEP = 1_000
_watch = Watch()
"""This process's ticks."""


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
    queues: Collection[str] = (),
    awake: bool = False,
    most: int | None = None,
    total: int | None = None,
    until: float | None = None,
    now: datetime | None = None,
) -> int:
    """Admit what may go, publish it, and look again until nothing is left; return how many were admitted.

    lanes, keys, queues, awake, most: see lifecycle.admit. What is left after `total` calls, or after the monotonic time
    `until`, is left to the next that comes along.
    """
    admitted = fruitless = 0
    while True:
        made = admit.admit(lanes=lanes, keys=keys, queues=queues, awake=awake, most=most, now=now)
        publish.publish(made.calls, now=now)
        admitted += len(made.calls)
        fruitless = 0 if made.has_moved else fruitless + 1
        again = admit.look_again(made, now=now)
        lanes, keys, queues = again.lanes, again.keys, again.queues
        if not (lanes or keys or queues or (awake and made.has_moved)):
            return admitted
        is_over = (until is not None and monotonic() > until) or (total is not None and admitted >= total)
        if is_over or fruitless == _FRUITLESS:
            recovery.leave(lanes, keys)
            return admitted


def tick(*, now: datetime | None = None, watch: Watch = _watch) -> int:
    """Serve what time has brought, and what it brings within the tick; return how many calls were admitted.

    A process does so once at a time: a tick that comes meanwhile returns 0, and the one that serves goes on for it.
    Any number of processes may. Without a backlog that time opens, it returns at once.
    """
    if now is not None:
        sweep()
        return _serve_due(now=now)
    settings = conf()
    if not watch.begin(settings.tick):
        return 0
    try:
        sweep()
        admitted = _serve_due(until=watch.until)
        while not watch.is_over(wait := due.next_due()):
            if watch.pause(wait or timedelta(0), least=settings.min_pause):
                sweep()
            admitted += _serve_due(until=watch.until)
    except BaseException:
        watch.break_off()
        raise
    return admitted


def execute(
    call_id: UUID, ticket: UUID, task: Callable[[], Any], *, worker: UUID | None = None
) -> run.Outcome | claim.Refused | None:
    """Claim, run, finish, and hand the room on; return how the attempt ended.

    Where the database is away, claim and finish are tried again for the setting's patience.
    Refused: nothing was run. None: it ran, but its ticket was replaced meanwhile, and the outcome was dropped.
    """
    number = uuid4()
    claimed = attempt.claim_in_time(call_id, ticket, number=number, worker=worker)
    if isinstance(claimed, claim.Refused):
        _refuse(claimed, call_id, ticket, number)
        return claimed
    outcome = run.run(task)
    finish_it = partial(attempt.finish_as, call_id, ticket, outcome, claimed)
    released = attempt.patiently(finish_it, again=finish_it)
    if released is None:
        return None
    try:
        hand_over(released.keys, released.lane_id)
    except Exception:
        # The outcome is recorded, and stands; the sweep of the next tick finds the room that was not handed on.
        logger.exception("the room of call %s was not handed on", call_id)
    return attempt.settle(outcome, released)


def hand_over(keys: Collection[int], lane: int | None = None) -> int:
    """Let the calls in that a release of these keys, in this lane, has made room for; return how many."""
    openable = admit.openable(keys, lane)
    if openable.queues:
        dispense(queues=openable.queues, most=REFILL, total=REFILL)
    if not openable.keys and not openable.has_awake:
        return 0
    return dispense(keys=openable.keys, awake=openable.has_awake, most=_HAND_OVER, total=_HAND_OVER)


def lose(call_id: UUID, ticket: UUID, error: BaseException, *, is_crash: bool, now: datetime | None = None) -> bool:
    """End an attempt whose process is known to be gone; return whether the ticket still held the call.

    is_crash: the process broke down, and was not ended on purpose.
    """
    with sql.atomic():
        released = attempt.lost(call_id, ticket, error, is_crash=is_crash, now=now)
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
        hand_over(released.keys, released.lane_id)
    return released is not None


def is_held(call_id: UUID, ticket: UUID) -> bool:
    """Return whether this ticket still holds its call."""
    return CallQueue.objects.using(conf().database).filter(id=call_id, ticket=ticket).exists()


def recover(*, now: datetime | None = None) -> int:
    """Put back the calls whose leases ran out or whose workers are gone, and trim the windows; return how many.

    A call that was never started goes back without spending an attempt; one that may just stand in a line at the broker
    is published again. Leases are not judged just after a time in which the database was away (see
    lifecycle.recover.can_judge), unless the caller names the time.
    """
    retention.trim_windows(now=now)
    if now is None and not recovery.can_judge():
        return 0
    for worker in heartbeat.lose_silent(now=now):
        logger.warning("worker %s fell silent, and counts as lost", worker.name)
    with sql.atomic():
        silent = WorkerLost("its worker fell silent for longer than a lease")
        found = [
            attempt.lost(call.call_id, call.ticket, silent, is_crash=True, now=now)
            for call in recovery.expired(now=now)
        ]
        found += [
            finish.put_back(call.call_id, call.ticket, from_states=[State.DISPATCHED])
            for call in recovery.unserved(now=now)
        ]
        put_back = [released for released in found if released is not None]
        attempt.wake(put_back)
    publish.publish(publish.to_repeat(now=now), now=now)
    if put_back:
        logger.warning("%d calls were put back: their leases had run out, or no worker serves them", len(put_back))
        serve(put_back, now=now)
    return len(put_back)


def reclaim(*, now: datetime | None = None) -> int:
    """End the attempts of calls that were fetched over HTTP and whose lease, or time, ran out; return how many."""
    with sql.atomic():
        ended = [attempt.ran_out(left, now=now) for left in recovery.overdue(now=now)]
    released = [each for each in ended if each is not None]
    if released:
        logger.warning("%d fetched calls were taken back: their leases had run out", len(released))
        serve(released, now=now)
    return len(released)


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
    """Delete what has ended and been kept for long enough, and workers long gone; return how many calls."""
    retention.delete_workers(now=now)
    retention.delete_workflows(now=now)
    retention.delete_entries(now=now)
    return retention.delete_ended(now=now)


# What people do


def limit(name: str, limits: Mapping[str, Any]) -> None:
    """Store other limits for a key, in force at once. Raises PolicyInvalid or KeyNotFound."""
    _soon(keys=[control.limit(name, limits)])


def pause(name: str, *, by: str = "") -> None:
    """Let nothing start under a key until it is resumed; `by`: who does it, for the journal. Raises KeyNotFound."""
    control.pause(name, by=by)


def resume(name: str, *, by: str = "") -> None:
    """Let a key's calls start again, after a pause or a block; `by`: as for a pause. Raises KeyNotFound."""
    _soon(keys=[control.resume(name, by=by)])


def block(name: str, wait: timedelta) -> None:
    """Let nothing start under a key for this long; a longer block stands. Raises PolicyInvalid or KeyNotFound."""
    if not control.block(wait, names=[name]):
        raise KeyNotFound(name)


def override(name: str, *, until: datetime, **limits: Any) -> None:
    """Put other limits (concurrency, rate, throttle) in force until a time; those not named stay as they are.

    Raises PolicyInvalid naming the field, or KeyNotFound.
    """
    _soon(keys=[control.override(name, limits, until)])


def end_override(name: str) -> None:
    """Put a key's own limits in force again."""
    _soon(keys=control.end_override(name))


def cancel(calls: Iterable[UUID]) -> list[UUID]:
    """End calls that have not started, and return them; those that run, or have ended, are left as they are."""
    done = control.cancel(calls)
    _soon(lanes=done.lanes, keys=done.keys)
    return done.calls


def retry(calls: Iterable[UUID]) -> list[UUID]:
    """Let ended calls wait again from attempt 0, and return them."""
    return _moved(control.retry(calls))


def activate(calls: Iterable[UUID]) -> list[UUID]:
    """Let calls that were sent as pending wait for their turn, and return them."""
    return _moved(control.activate(calls))


def run_now(calls: Iterable[UUID]) -> list[UUID]:
    """Move calls to the front of their lanes, whatever time they were sent for, and return them; limits still hold."""
    return _moved(control.run_now(calls))


# How the verbs above hang together


def _draft(call: Call) -> sending.Draft:
    if (call.task is None) == (call.call_data is None):
        raise CallInvalid("task", "give either a task or call_data, such as {'method': 'post', 'params': {...}}.")
    task, queue = publish.route(call.task if call.task is not None else CALL_DATA_TASK, call.args, call.kwargs)
    return sending.draft(call, task=task, queue=call.queue if call.queue is not None else queue)


def _refuse(refused: claim.Refused, call_id: UUID, ticket: UUID, number: UUID) -> None:
    match refused:
        case claim.Refused.STALE:
            released = None
        case claim.Refused.CLOSED:
            released = attempt.put_back(call_id, ticket, number=number)
        case claim.Refused.EXPIRED:
            released = finish.expire(call_id, ticket)
        case _:
            assert_never(refused)
    if released is not None:
        dispense(lanes=[released.lane_id], keys=released.keys)


def _serve_due(*, until: float | None = None, now: datetime | None = None) -> int:
    reclaim(now=now)
    due.wake_due(now=now)
    due.discard_expired(now=now)
    publish.publish(publish.unpublished(now=now), now=now)
    keys, queues = due.due_keys(now=now), due.due_queues(now=now)
    return dispense(keys=keys, queues=queues, awake=True, until=until, now=now)


def _moved(moved: Sequence[control.Moved]) -> list[UUID]:
    _soon(lanes={row.lane_id for row in moved})
    return [row.id for row in moved]


def _soon(*, lanes: Collection[int] = (), keys: Collection[int] = ()) -> None:
    """Dispense at once, or when the caller's transaction has committed: until then no worker could claim."""
    transaction.on_commit(partial(dispense, lanes=lanes, keys=keys), using=conf().database, robust=True)


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


def serve(put_back: Collection[finish.Released], *, now: datetime | None = None) -> None:
    """Dispense the lanes of calls that were put back, and the room that they gave up."""
    if put_back:
        lanes = {released.lane_id for released in put_back}
        keys = {key for released in put_back for key in released.keys}
        dispense(lanes=lanes, keys=keys, awake=True, now=now)
