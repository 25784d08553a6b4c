"""A tick: serve what time has brought, find what no pass would serve; and the nightly cleanup."""

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import monotonic

from dispatcher import sql
from dispatcher.conf import conf
from dispatcher.engine.dispenser import dispense, place_and_dispense
from dispatcher.engine.ticker import Ticker
from dispatcher.extension import registered
from dispatcher.lifecycle import admit, oversized, place, publish, retention, schedule, wake
from dispatcher.lifecycle import recover as recovery
from dispatcher.lifecycle.retention import unused

logger = logging.getLogger(__name__)

_LANES = 350
"""How many lanes one tick looks at for calls that no pass would serve."""
_KEYS = 250
"""And how many keys, for room that no pass would use: such a look costs more."""
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


@dataclass(frozen=True, kw_only=True)
class _SweepLook:
    """What a sweep asks for."""

    lanes: sql.Asked[recovery.Swept]
    keys: sql.Asked[recovery.Swept]
    queues: sql.Asked[str]


@dataclass(frozen=True, kw_only=True)
class _Look:
    """What a tick asks for, in one trip."""

    due: sql.Asked[schedule.Due]
    queues: sql.Asked[str]
    sweep: _SweepLook | None


def tick(*, now: datetime | None = None, ticker: Ticker = _ticker) -> int:
    """Serve what time has brought, and what it brings within the tick; return how many calls were admitted.

    A process does so once at a time: a tick that comes meanwhile returns 0, and the one that serves goes on for it.
    Any number of processes may. Without a backlog that time opens, it returns at once.
    """
    if now is not None:
        return _serve(_look(now=now), now=now)
    settings = conf()
    if not ticker.begin(settings.tick):
        return 0
    try:
        admitted = _serve(_look(), until=ticker.until)
        while not ticker.is_over(wait := schedule.next_due()):
            # What is due at a key that somebody keeps locked stays due.
            least = _LOCKED_PAUSES * settings.min_pause if admit.stuck_keys() else settings.min_pause
            is_called = ticker.pause(wait or timedelta(0), least=least)
            admitted += _serve(_look(sweeps=is_called), until=ticker.until)
    except BaseException:
        ticker.abort()
        raise
    return admitted


def _look(*, sweeps: bool = True, now: datetime | None = None) -> _Look:
    with sql.together():
        return _Look(
            due=schedule.ask_due(now=now),
            queues=schedule.ask_due_queues(now=now),
            sweep=_look_for_stranded() if sweeps else None,
        )


@publish.eager_errors_last()
def _serve(look: _Look, *, until: float | None = None, now: datetime | None = None) -> int:
    """Do what was found, and nothing else: a tick that finds nothing ends with its look."""
    due, queues = look.due.row(), look.queues.rows()
    changed = 0
    if look.sweep:
        changed += _wake_stranded(look.sweep)
        changed += _release_oversized() if due.has_oversized else 0
        changed += place_unplaced() if due.has_unplaced else 0
    changed += registered().reclaim(now=now) if due.has_overdue else 0
    # What was reclaimed may be due at once.
    changed += schedule.wake_due(now=now) if due.has_due_calls or changed else 0
    changed += schedule.discard_expired(now=now) if due.has_expired or changed else 0
    if due.has_unpublished:
        publish.publish(publish.unpublished(now=now), now=now)
    keys = schedule.due_keys(now=now) if due.has_due_keys or changed else []
    if not (keys or queues or due.has_awake or changed):
        return 0
    return dispense(keys=keys, queues=queues, awake=True, until=until, now=now)


def sweep() -> int:
    """Wake lanes and keys that no pass would serve; return how many. Expected: 0.

    That is what a sender or a finish leaves that dies half way: lanes that sleep over waiting calls, and keys with
    room that lanes are parked on. Let calls go on that waited alone, where limits allow their cost by now,
    and notify idle workers whose direct queues hold lanes.
    """
    with sql.together():
        look = _look_for_stranded()
    _release_oversized()
    return _wake_stranded(look)


def _look_for_stranded() -> _SweepLook:
    return _SweepLook(
        lanes=recovery.ask_sweep_lanes(_Sweep.lane, _LANES),
        keys=recovery.ask_sweep_keys(_Sweep.key, _KEYS),
        queues=wake.ask_waiting(),
    )


def _wake_stranded(look: _SweepLook) -> int:
    lanes, keys = look.lanes.row(), look.keys.row()
    _Sweep.lane, _Sweep.key = lanes.last, keys.last
    woken = recovery.wake(lanes.stranded) if lanes.stranded else 0
    if keys.stranded:
        dispense(keys=keys.stranded)
        woken += len(keys.stranded)
    wake.notify(look.queues.rows())
    if woken:
        logger.info("the sweep woke %d lanes and keys", woken)
    return woken


def _release_oversized() -> int:
    released = oversized.release(after=_Sweep.oversized, until=monotonic() + _SWEEP_S)
    _Sweep.oversized = released.last
    return released.calls


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
    registered().clean_up(now=now)
    retention.delete_changes(now=now)
    deleted = retention.delete_ended(now=now)
    unused.remove_lanes(now=now)
    unused.remove_keys(now=now)
    return deleted
