"""What the actors do, and what must be so when all is done."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from django.db import transaction
from django.utils import timezone

from dispatcher import engine
from dispatcher.engine import ends, recovery
from dispatcher.lifecycle import claim, schedule, take
from dispatcher.lifecycle.take import Taken, Taker
from dispatcher.models import CallQueue, LaneSite, Slot
from dispatcher.states import State
from tests.races.audit import audit
from tests.races.traffic import ended, in_flight

T = TypeVar("T")

LOST = TimeoutError("its worker is gone")
_SOON = timedelta(seconds=0.1)


def slowly(work: Callable[[], T]) -> T:
    """Do this in a transaction that stays open for a step: its locks are held, and what it writes is not seen."""
    with transaction.atomic():
        return work()


def send_in_transaction(*keys: str) -> None:
    """Send as a caller does who writes something of its own beside."""
    slowly(lambda: CallQueue.objects.send("noop", keys=keys))


def trip(queue: str = "celery") -> Taken:
    """Dispatch up to one call of a queue, whose locks are held up to the commit."""
    return slowly(lambda: take.take(Taker(queues=[queue], becomes=State.DISPATCHED), room=1))


def finish_one(call: CallQueue) -> bool:
    """End an attempt and let others go with its room; return whether the ticket still held the call."""
    return ends.record_one(ended(call))


def give_up() -> int:
    """Put back what has run out, the heart of a recovery, and let in what can go then; return how many."""
    return recovery.lose_expired(until=timezone.now())


def wake_due() -> int:
    """Do what a tick does about calls whose time has come; return how many it woke."""
    woken = schedule.wake_due()
    engine.dispense()
    return woken


def running(*keys: str) -> CallQueue:
    """Return a call that a worker has claimed."""
    (call,) = in_flight(*keys)
    assert isinstance(claim.claim(call.id, call.ticket), claim.Claimed)
    return CallQueue.objects.get(id=call.id)


def let_leases_run_out() -> None:
    """Let whatever is in flight seem lost."""
    Slot.objects.update(lease_until=timezone.now() - timedelta(seconds=1))


def come_along() -> None:
    """Make the trips that the actors have left notes for; no call may be left to the sweep of a tick."""
    audit(has_ended=False, limits_changed=True)
    engine.dispense()
    while (wait := schedule.ask_due().row().wait) is not None and wait < _SOON:
        time.sleep(max(0.0, wait.total_seconds()))
        engine.dispense()
    assert engine.sweep() == 0


def no_call_waits(*_: Any) -> None:
    """Check that what waits is parked where an end, or time, will open."""
    come_along()
    waiting = CallQueue.objects.waiting().values("lane_id")
    assert not LaneSite.objects.filter(lane_id__in=waiting, place=0)


def all_are_admitted(*_: Any) -> None:
    """Check that no call waits at all."""
    come_along()
    assert not CallQueue.objects.exclude(state__in=[State.DISPATCHED, State.ACTIVE, State.COMPLETED])
