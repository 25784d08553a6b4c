"""A tick: serve what time has brought, find what no pass would serve; and the nightly cleanup."""

import logging
from datetime import datetime, timedelta
from time import monotonic

from dispatcher.conf import conf
from dispatcher.engine.dispenser import dispense, place_and_dispense
from dispatcher.engine.recovery import reclaim
from dispatcher.engine.ticker import Ticker
from dispatcher.lifecycle import admit, oversized, place, publish, retention, schedule, wake
from dispatcher.lifecycle import recover as recovery
from dispatcher.lifecycle.retention import unused

logger = logging.getLogger(__name__)

_SWEEP = 1_000
"""How many lanes, and how many keys, one tick looks at for calls that no pass would serve."""
_SWEEP_S = 0.2
"""How long a sweep lets calls go on that waited alone, before it leaves the others to the next one."""
_LOCK_WAIT = timedelta(milliseconds=5)
"""How long a tick waits for another transaction that has made a key or lane; the next one tries again."""
_LOCKED_PAUSES = 4
"""How many times longer than usual a tick pauses at the least while somebody keeps a key locked."""
_ticker = Ticker()
"""This process's ticks."""


class _Sweep:
    """Where this process's next sweep goes on."""

    lane = 0
    key = 0
    position = place.FIRST
    oversized = 0


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


@publish.eager_errors_last()
def _serve_due(*, until: float | None = None, now: datetime | None = None) -> int:
    reclaim(now=now)
    schedule.wake_due(now=now)
    schedule.discard_expired(now=now)
    publish.publish(publish.unpublished(now=now), now=now)
    keys, queues = schedule.due_keys(now=now), schedule.due_queues(now=now)
    return dispense(keys=keys, queues=queues, awake=True, until=until, now=now)


def sweep() -> int:
    """Wake lanes and keys that no pass would serve; return how many. Expected: 0.

    That is what a sender or a finish leaves that dies half way: lanes that sleep over waiting calls, and keys with
    room that lanes are parked on. Let calls go on that waited alone, where limits allow their cost by now,
    and notify idle workers whose direct queues hold lanes.
    """
    lanes, keys = recovery.sweep_lanes(_Sweep.lane, _SWEEP), recovery.sweep_keys(_Sweep.key, _SWEEP)
    _Sweep.lane, _Sweep.key = lanes.last, keys.last
    _Sweep.oversized = oversized.release(after=_Sweep.oversized, until=monotonic() + _SWEEP_S).last
    woken = recovery.wake(lanes.stranded) if lanes.stranded else 0
    if keys.stranded:
        dispense(keys=keys.stranded)
        woken += len(keys.stranded)
    wake.notify(wake.waiting())
    if woken:
        logger.info("the sweep woke %d lanes and keys", woken)
    return woken


def place_unplaced() -> int:
    """Put calls into their lanes that their senders left without one, and dispense them; return how many."""
    found = place.next_unplaced(_Sweep.position, conf().batch)
    _Sweep.position = found.last
    return place_and_dispense(found.calls, lock_wait=_LOCK_WAIT)


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
