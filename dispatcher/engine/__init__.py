"""The table of contents: the verbs of the dispatcher, each composed of the steps in `lifecycle`."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from time import monotonic
from typing import Any
from uuid import UUID, uuid4

from dispatcher import lanes as lanes_of
from dispatcher import sql, validate
from dispatcher.conf import conf
from dispatcher.engine import attempt, compose, dispenser, feed, fetched, sent
from dispatcher.engine.ticker import Ticker
from dispatcher.errors import KeyNotFound
from dispatcher.history import By
from dispatcher.lanes import heads
from dispatcher.lifecycle import admit, claim, control, finish, oversized, place, publish, retention, run, schedule
from dispatcher.lifecycle import recover as recovery
from dispatcher.lifecycle import send as sending
from dispatcher.lifecycle.retention import unused
from dispatcher.limits.policy import Policy
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.request import Call
from dispatcher.states import State

logger = logging.getLogger(__name__)

CALL_DATA_TASK = compose.CALL_DATA_TASK
"""The built-in task that runs a call's `call_data`."""

_SWEEP = 1_000
"""How many lanes, and how many keys, one tick looks at for calls that no pass would serve."""
_SWEEP_S = 0.2
"""How long a sweep lets calls go on that waited alone, before it leaves the others to the next one."""
_LOCK_WAIT = timedelta(milliseconds=25)
"""How long a sender waits for another transaction that has made a key or lane which its calls need."""
_TICK_LOCK_WAIT = timedelta(milliseconds=5)
"""How long a tick does: the next one tries again."""
_LOCKED_PAUSES = 4
"""How many times longer than usual a tick pauses at the least while somebody keeps a key locked."""
dispense, dispense_briefly = dispenser.dispense, dispenser.dispense_briefly
hand_over, serve, serve_changed = dispenser.hand_over, dispenser.serve, dispenser.serve_changed
_ticker = Ticker()
"""This process's ticks."""


# What callers do


def send(calls: Sequence[Call]) -> list[CallQueue]:
    """Write calls, all or none, and dispense their lanes after the commit. Raises CallInvalid or PolicyInvalid."""
    drafts = compose.drafts(calls)
    if len(drafts) == 1 and not sql.in_transaction():
        written = [sending.write_one(drafts[0])]
        admitted = [call for call in written if call.ticket is not None]
        sql.after_commit(partial(publish.publish, admitted))
    else:
        written = sending.write(drafts)
    fetched.report(written)
    lanes = heads.first(
        heads.Place(lane_id=call.lane_id, position=call.position) for call in written if call.state == State.AVAILABLE
    )
    sent.after_commit(_serve_sent, lanes=lanes, calls={call.id for call in written if call.lane_id is None})
    return written


def declare(name: str, limits: Mapping[str, Any]) -> RateLimitKey:
    """Make a key if it does not exist, and return it as it is stored. Raises PolicyInvalid or CallInvalid.

    One that a template has made is kept from now on, even if it is unused.
    """
    policies = {validate.key_name(name): Policy.parse(limits)}
    keys = RateLimitKey.objects.using(conf().database).filter(name=name)
    # First, so that it is not removed meanwhile.
    keys.filter(is_from_template=True).update(is_from_template=False)
    lanes_of.make_keys(policies, is_declared=True)
    return keys.get()


# What moves calls


def tick(*, now: datetime | None = None, ticker: Ticker = _ticker) -> int:
    """Serve what time has brought, and what it brings within the tick; return how many calls were admitted.

    A process does so once at a time: a tick that comes meanwhile returns 0, and the one that serves goes on for it.
    Any number of processes may. Without a backlog that time opens, it returns at once.
    """
    if now is not None:
        sweep()
        place_unplaced()
        return _serve_due(now=now)
    settings = conf()
    if not ticker.begin(settings.tick):
        return 0
    try:
        sweep()
        place_unplaced()
        admitted = _serve_due(until=ticker.until)
        while not ticker.is_over(wait := schedule.next_due()):
            # What is due at a key that somebody keeps locked stays due.
            least = _LOCKED_PAUSES * settings.min_pause if admit.stuck_keys() else settings.min_pause
            if ticker.pause(wait or timedelta(0), least=least):
                sweep()
                place_unplaced()
            admitted += _serve_due(until=ticker.until)
    except BaseException:
        ticker.abort()
        raise
    return admitted


def execute(
    call_id: UUID,
    ticket: UUID,
    task: Callable[[], Any],
    *,
    worker: UUID | None = None,
    number: UUID | None = None,
) -> run.Outcome | claim.Refused | None:
    """Claim, run, finish, and hand the room on; return how the attempt ended.

    worker: who claims. number: the claim's own; a new one by default. Where the database is unavailable, claim and
    finish are tried again for the setting's patience; a finish after every error but one of its own data.
    Refused: nothing was run. None: it ran, but its ticket was replaced meanwhile, and the outcome was dropped.
    """
    this = attempt.Attempt(call_id, ticket, number=number or uuid4(), worker=worker)
    return this.to_its_end(partial(_execute, this, task))


def _execute(this: attempt.Attempt, task: Callable[[], Any]) -> run.Outcome | claim.Refused | None:
    claimed = this.claim_call()
    if isinstance(claimed, claim.Refused):
        if (returned := this.refuse(claimed)) is not None:
            dispense_briefly(lanes=[returned.lane_id], keys=returned.keys)
        return claimed
    outcome = this.run_task(task)
    released = this.record(outcome, claimed)
    if released is None:
        return None
    try:
        hand_over(released.keys, released.lane_id)
    except Exception as error:
        if sql.is_interruption(error):
            raise
        # The outcome is recorded, and stands; the sweep of the next tick finds the room that was not handed on.
        logger.exception("the room of call %s was not handed on", this.call_id)
    return attempt.settle(outcome, released)


def lose(
    call_id: UUID,
    ticket: UUID,
    error: BaseException,
    *,
    is_crash: bool,
    number: UUID | None = None,
    now: datetime | None = None,
) -> bool:
    """End an attempt whose process is known to be gone; return whether the ticket still held the call.

    is_crash: the process broke down, and was not ended on purpose. number: the claim of that process; an attempt of
    another claim goes on.
    """
    with sql.atomic():
        released = attempt.lost(call_id, ticket, error, is_crash=is_crash, number=number, now=now)
        attempt.wake([released] if released else [])
    if released is not None:
        dispense_briefly(lanes=[released.lane_id], keys=released.keys)
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
    """Put back the calls whose leases ran out or whose workers are gone; return how many.

    It also trims the windows and the journal, and frees the slots of calls that were deleted.

    A call that was never started goes back without spending an attempt; one that may just stand in a line at the broker
    is published again. Leases are not judged just after a time in which the database was away (see
    lifecycle.recover.judged_until), unless the caller names the time.
    """
    retention.trim_windows(now=now)
    retention.delete_entries(now=now)
    freed = recovery.free_orphans(after=_Sweep.slot, now=now)
    _Sweep.slot = freed.last
    if freed.keys:
        logger.warning("%d slots were freed: their calls were deleted, or are not in flight", len(freed.keys))
        dispense(keys={key for key in freed.keys if key is not None}, total=conf().batch, now=now)
    until = now or recovery.judged_until()
    if until is None:
        return 0
    put_back = attempt.put_back_lost(until=until, now=now)
    reclaim(now=now, until=until)
    publish.publish(publish.to_repeat(now=now, until=until), now=now)
    if put_back:
        logger.warning("%d calls were put back: their leases had run out, or no worker serves them", len(put_back))
        serve(put_back, now=now)
    return len(put_back)


def reclaim(*, now: datetime | None = None, until: datetime | None = None) -> int:
    """End the attempts of calls that were fetched over HTTP and whose lease, or time, ran out; return how many.

    until: their leases were over by then; by default as `recover` judges them, or `now` if that is given.
    """
    until = until or now or recovery.overdue_until()
    if until is None:
        return 0
    with sql.atomic():
        ended = [attempt.ran_out(left, now=now) for left in recovery.overdue(now=until)]
        released = [each for each in ended if each is not None]
        attempt.wake(released)
    if released:
        logger.warning("%d fetched calls were taken back: their leases had run out", len(released))
        serve(released, now=now)
    return len(released)


class _Sweep:
    """Where this process's next sweep, or recovery, goes on."""

    lane = 0
    key = 0
    slot = 0
    position = place.FIRST
    oversized = 0


def sweep() -> int:
    """Wake lanes and keys that no pass would serve; return how many. Expected: 0.

    That is what a sender or a finish leaves that dies half way: lanes that sleep over waiting calls, and keys with
    room that lanes are parked on. And let calls go on that waited alone, where limits allow their cost by now.
    """
    lanes, keys = recovery.sweep_lanes(_Sweep.lane, _SWEEP), recovery.sweep_keys(_Sweep.key, _SWEEP)
    _Sweep.lane, _Sweep.key = lanes.last, keys.last
    _Sweep.oversized = oversized.release(after=_Sweep.oversized, until=monotonic() + _SWEEP_S).last
    woken = recovery.wake(lanes.stranded) if lanes.stranded else 0
    if keys.stranded:
        dispense(keys=keys.stranded)
        woken += len(keys.stranded)
    if woken:
        logger.info("the sweep woke %d lanes and keys", woken)
    return woken


def place_unplaced() -> int:
    """Put calls into their lanes that their senders left without one, and dispense them; return how many."""
    found = place.next_unplaced(_Sweep.position, conf().batch)
    _Sweep.position = found.last
    return place_and_dispense(found.calls, lock_wait=_TICK_LOCK_WAIT)


def place_and_dispense(
    calls: Collection[UUID], *, lanes: Mapping[int, int] | None = None, lock_wait: timedelta = _LOCK_WAIT
) -> int:
    """Put calls that have no lane yet into theirs, dispense these and the other lanes; return how many were placed.

    lanes: each with the first of the positions that were sent to it.
    """
    placed = place.place(calls, lock_wait=lock_wait)
    there = [heads.Place(lane_id=lane, position=position) for lane, position in (lanes or {}).items()]
    serve_changed(heads.first([*there, *placed]))
    return len(placed)


def cleanup(*, now: datetime | None = None) -> int:
    """Delete what has ended and been kept for long enough, workers long gone, unused lanes and keys.

    Return how many calls.
    """
    retention.delete_workers(now=now)
    retention.delete_workflows(now=now)
    retention.delete_entries(budget=conf().cleanup_budget, now=now)
    retention.delete_changes(now=now)
    deleted = retention.delete_ended(now=now)
    unused.remove_lanes(now=now)
    unused.remove_keys(now=now)
    return deleted


# What people do


def limit(name: str, limits: Mapping[str, Any], *, by: By = "") -> int:
    """Store other limits for a key, in force at once; return how many waiting calls cost more than they ever allow.

    Those wait alone until the limits allow them. by: who does it, for the history, as in each verb that changes a key.
    Raises PolicyInvalid or KeyNotFound.
    """
    _limited([control.limit(name, limits, by=by)])
    return count_oversized(name, limits)


def count_oversized(name: str, limits: Mapping[str, Any], *, keeps_others: bool = False) -> int:
    """Return how many waiting calls cost more of a key than these limits would ever allow, and change nothing.

    Among the first 100,000 that wait. keeps_others: strategies not named stay as they are, as in an override. Raises
    PolicyInvalid or KeyNotFound.
    """
    return oversized.count(name, limits, keeps_others=keeps_others)


def pause(name: str, *, by: By = "") -> None:
    """Let nothing start under a key until it is resumed. Raises KeyNotFound."""
    control.pause(name, by=by)


def resume(name: str, *, by: By = "") -> None:
    """Let a key's calls start again, after a pause or a block. Raises KeyNotFound."""
    _soon(keys=[control.resume(name, by=by)])


def block(name: str, wait: timedelta | float | str, *, by: By = "") -> None:
    """Let nothing start under a key for this long; a longer block stands. Raises PolicyInvalid or KeyNotFound.

    wait: a timedelta, seconds or ISO 8601.
    """
    if not control.block(wait, names=[name], by=by):
        raise KeyNotFound(name, lanes_of.known_names())


def override(name: str, *, until: datetime, by: By = "", **limits: Any) -> int:
    """Put other limits (concurrency, rate, throttle) in force until a time; those not named stay as they are.

    Return how many waiting calls cost more than they ever allow. Raises PolicyInvalid naming the field, or KeyNotFound.
    """
    _limited([control.override(name, limits, until, by=by)])
    return count_oversized(name, limits, keeps_others=True)


def end_override(name: str, *, by: By = "") -> int:
    """Put a key's own limits in force again; return how many waiting calls cost more than they ever allow."""
    ended = control.end_override(name, by=by)
    _limited(ended)
    return count_oversized(name, {}, keeps_others=True) if ended else 0


Calls = CallQueue | UUID | str | Iterable[CallQueue | UUID | str]
"""Calls as people name them: a call, its id, or several of these. Anything else raises CallInvalid."""


def cancel(calls: Calls) -> list[UUID]:
    """End calls that have not started, and return their ids; those that run, or have ended, are left as they are."""
    done = control.cancel(validate.call_ids(calls))
    _soon(lanes=done.lanes, keys=done.keys)
    return done.calls


def retry(calls: Calls) -> list[UUID]:
    """Let ended calls wait again from attempt 0, and return their ids."""
    return _moved(control.retry(validate.call_ids(calls)))


def activate(calls: Calls) -> list[UUID]:
    """Let calls that were sent as pending wait for their turn, and return their ids."""
    return _moved(control.activate(validate.call_ids(calls)))


def run_now(calls: Calls) -> list[UUID]:
    """Move calls to the front of their lanes, whatever time they were sent for; return their ids. Limits still hold."""
    return _moved(control.run_now(validate.call_ids(calls)))


# How the verbs above hang together


@publish.eager_errors_last()
def _serve_due(*, until: float | None = None, now: datetime | None = None) -> int:
    reclaim(now=now)
    schedule.wake_due(now=now)
    schedule.discard_expired(now=now)
    publish.publish(publish.unpublished(now=now), now=now)
    feed.wake_waiting()
    keys, queues = schedule.due_keys(now=now), schedule.due_queues(now=now)
    return dispense(keys=keys, queues=queues, awake=True, until=until, now=now)


def _limited(keys: Collection[int]) -> None:
    """Serve keys whose limits have changed, after the commit; first let go on what waited alone and fits now."""
    sql.after_commit(partial(dispenser.serve_limited, keys))


def _moved(moved: Sequence[control.Moved]) -> list[UUID]:
    lanes = {row.lane_id for row in moved if row.lane_id is not None}
    # After the commit, so that no open transaction keeps a lane locked; a pass that holds one is waited for.
    sql.after_commit(partial(recovery.wake, lanes))
    _soon(lanes=lanes)
    sent.after_commit(_serve_sent, calls={row.id for row in moved if row.lane_id is None})
    return [row.id for row in moved]


def _soon(*, lanes: Collection[int] = (), keys: Collection[int] = ()) -> None:
    """Dispense at once, or when the caller's transaction has committed: until then no worker could claim."""
    sql.after_commit(partial(dispense_briefly, lanes=lanes, keys=keys, total=dispenser.AT_ONCE))


def _serve_sent(found: sent.Sent) -> None:
    place_and_dispense(found.calls, lanes=found.lanes)
