"""A tick: serve what time has brought, find what no trip would look at; and the nightly cleanup."""

import logging
from datetime import datetime, timedelta
from time import monotonic, sleep

from dispatcher import sql
from dispatcher.conf import conf
from dispatcher.engine import sent
from dispatcher.engine.dispenser import dispense
from dispatcher.extension import registered
from dispatcher.lifecycle import control, oversized, place, publish, retention, schedule, wake
from dispatcher.lifecycle import recover as recovery
from dispatcher.lifecycle.retention import unused

logger = logging.getLogger(__name__)

_LOCK_WAIT = timedelta(milliseconds=5)
"""How long a tick waits for another transaction that has made a key or lane; the next one tries again."""
_ROUNDS = 1_000
"""How many times one look of a tick reads notes at the most, a hundred or more each time."""


class _Sweep:
    """Where this process's next sweep goes on."""

    lane = 0
    key = 0
    position = place.FIRST


def tick(*, now: datetime | None = None) -> int:
    """Serve what time has brought, and what it brings within the tick; return how many calls were dispatched.

    Any number of processes may. Where nothing falls due within the tick, it returns at once.
    """
    if now is not None:
        return _serve(*_look(now=now), now=now)
    settings = conf()
    until = monotonic() + settings.tick.total_seconds()
    due, stranded = _look()
    dispatched = _serve(due, stranded, until=until)
    while (wait := (schedule.ask_due().row() if due.is_any else due).wait) is not None:
        if monotonic() + max(wait.total_seconds(), 0) >= until:
            break
        sleep(max(wait, settings.min_pause).total_seconds())
        due = schedule.ask_due().row()
        dispatched += _serve(due, until=until)
    return dispatched


def sweep() -> int:
    """Leave notes for lanes and keys that no trip would look at; return how many. Expected: 0.

    That is what a mistake leaves: lanes that sleep over waiting calls, and keys with room that lanes are parked on.
    Let calls go on that waited alone, where limits allow their cost by now, and wake idle workers of ready lanes.
    """
    with sql.together():
        asked = _ask_stranded()
    stranded = _note(asked.row())
    released = oversized.release()
    if stranded or released:
        dispense()
    _wake_workers()
    return stranded


def _look(*, now: datetime | None = None) -> tuple[schedule.Due, recovery.Stranded]:
    """Return what a tick has to do, in one trip."""
    with sql.together():
        due, stranded = schedule.ask_due(now=now), _ask_stranded()
    return due.row(), stranded.row()


@publish.eager_errors_last()
def _serve(
    due: schedule.Due,
    stranded: recovery.Stranded | None = None,
    *,
    until: float | None = None,
    now: datetime | None = None,
) -> int:
    """Do what was found, and nothing else: a tick that finds nothing ends with its look."""
    changed = 0
    if stranded is not None:
        changed += _note(stranded)
        changed += oversized.release() if due.has_oversized else 0
        changed += place_unplaced() if due.has_unplaced else 0
    changed += registered().reclaim(now=now) if due.has_overdue else 0
    # What was reclaimed may be due at once.
    changed += schedule.wake_due(now=now) if due.has_due_calls or changed else 0
    changed += schedule.discard_expired(now=now) if due.has_expired or changed else 0
    if due.has_overrides:
        control.clear_overrides(now=now)
    if due.has_unpublished:
        publish.publish(publish.unpublished(now=now), now=now)
    if not (due.has_notes or due.has_ready or changed):
        return 0
    dispatched = _dispense(until)
    _wake_workers()
    return dispatched


def _dispense(until: float | None) -> int:
    """Make trips until no note is due, or a monotonic time has come; return how many calls were dispatched."""
    dispatched = dispense()
    for _ in range(_ROUNDS):
        if not schedule.ask_due().row().has_notes or (until is not None and monotonic() > until):
            break
        dispatched += dispense()
    return dispatched


def _wake_workers() -> None:
    """Wake an idle worker of each queue with ready lanes whose calls workers take by themselves."""
    if queues := wake.ready_queues():
        wake.ask(queues=queues)


def _ask_stranded() -> sql.Asked[recovery.Stranded]:
    return recovery.ask_stranded(after_lane=_Sweep.lane, after_key=_Sweep.key)


def _note(stranded: recovery.Stranded) -> int:
    _Sweep.lane, _Sweep.key = stranded.last_lane, stranded.last_key
    if stranded.count:
        logger.info("lanes and keys were found that no trip would look at: %d", stranded.count)
    return stranded.count


def place_unplaced() -> int:
    """Put calls into their lanes that their senders left without one, and serve them; return how many."""
    calls, _Sweep.position = place.next_unplaced(_Sweep.position, conf().batch)
    return sent.serve(unplaced=calls, lock_wait=_LOCK_WAIT)


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
