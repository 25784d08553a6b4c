"""What the actors do, and what must be so when all is done."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from django.db import transaction
from django.utils import timezone

from dispatcher import ending, engine
from dispatcher.engine import attempt, lost, release
from dispatcher.lifecycle import claim, finish, recover, schedule, send
from dispatcher.models import CallQueue, Slot
from dispatcher.request import Call
from dispatcher.states import State
from tests.races.traffic import in_flight

LOST = TimeoutError("its worker is gone")


def send_in_transaction(*keys: str) -> None:
    """Send as a caller does who writes something of its own beside."""
    with transaction.atomic():
        CallQueue.objects.send("noop", keys=keys)


def write_alone(*keys: str) -> CallQueue:
    """Write one call as a lone send does, admitted if nothing is in its way; waiting calls stay waiting."""
    return send.write([send.draft(Call(keys=keys), task="noop", queue="celery")]).calls[0]


def dispense(*calls: CallQueue) -> Callable[[], int]:
    """Give the work of a pass over the lanes of these calls."""
    return partial(engine.dispense, lanes={call.lane_id for call in calls})


def finish_one(call: CallQueue) -> bool:
    """End an attempt and hand its room on; return whether the ticket still held the call."""
    released = finish.complete(call.id, call.ticket, result=None)
    if released is not None:
        engine.hand_over(released.keys, released.lane_id)
    return released is not None


def release_one(call: CallQueue) -> release.Release:
    """End an attempt as a worker does, which admits the next call in the same transaction; what else opens is left."""
    return release.finish_and_admit(call.id, call.ticket, ending.completed(None), claim_id=call.claim)


def finish_and_admit(call: CallQueue) -> bool:
    """End an attempt as a worker does, which admits the next call in the same transaction."""
    done = release_one(call)
    release.serve(done)
    return done.released is not None


def give_up(*, serves: bool = False) -> int:
    """Put back what has run out, the heart of a recovery; return how many. `serves`: and let in what can go then."""
    with transaction.atomic():
        ended = [lost.put_back(call.call_id, call.ticket, LOST, is_crash=True) for call in recover.expired()]
        put_back = [released for released in ended if released is not None]
        attempt.wake(put_back)
    if serves and put_back:
        engine.serve(put_back)
    return len(put_back)


def wake_due() -> int:
    """Do what a tick does about calls whose time has come; return how many it woke."""
    woken = schedule.wake_due()
    engine.dispense(awake=True)
    return woken


def running(*keys: str) -> CallQueue:
    """Return a call that a worker has claimed."""
    (call,) = in_flight(*keys)
    assert isinstance(claim.claim(call.id, call.ticket), claim.Claimed)
    return call


def let_leases_run_out() -> None:
    """Let whatever is in flight seem lost."""
    Slot.objects.update(lease_until=timezone.now() - timedelta(seconds=1))


def no_call_waits(*_: Any) -> None:
    """Check that no call is left to a tick: what waits is parked where somebody, or time, will open."""
    left = CallQueue.objects.waiting().filter(lane__is_awake=True)
    assert not left, f"{left[0]} was left to the next tick"


def all_are_admitted(*_: Any) -> None:
    """Check that no call waits at all."""
    assert not CallQueue.objects.exclude(state__in=[State.DISPATCHED, State.ACTIVE, State.COMPLETED])
