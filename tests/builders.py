"""What a test needs before it begins: keys, and calls that have come as far as it wants them.

Time is what the test says it is: `T0`, and so many seconds after it.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection

from dispatcher import ending
from dispatcher.conf import conf
from dispatcher.ending import InFlight
from dispatcher.engine import ends
from dispatcher.lifecycle import claim, heartbeat, place, send
from dispatcher.lifecycle.finish import Ended
from dispatcher.lifecycle.take import Taker, take
from dispatcher.models import CallQueue, Lane, RateLimitKey, Slot, Start
from dispatcher.request import Call
from dispatcher.states import State
from tests.apps import APPS
from tests.clock import stopped_clock

T0 = datetime(2030, 1, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)

HERE = heartbeat.WorkerInfo(
    id=uuid4(), name="celery@here", host="here", pid=1, pool="prefork", processes=2, queues=["celery"]
)
"""A worker."""

committed = pytest.mark.django_db(transaction=True, available_apps=APPS)
"""Marks tests that commit as the application does; afterwards the tables of the dispatcher are emptied."""


def at(seconds: float) -> datetime:
    """Return the time so many seconds after `T0`."""
    return T0 + timedelta(seconds=seconds)


def key(name: str = "api", **limits: Any) -> RateLimitKey:
    """Make a key with these limits."""
    return RateLimitKey.objects.declare(name, **limits)


def waiting(*keys: str, costs: Mapping[str, int] | None = None, queue: str = "celery", **fields: Any) -> CallQueue:
    """Write a call as a sender does that dies with its commit: it is there, and is noted, and no trip comes."""
    draft = send.draft(Call(task="noop", keys=costs or keys, **fields), task="noop", queue=queue)
    call = send.write([draft]).calls[0]
    # Within a test's transaction it has no lane yet.
    return call if call.lane_id is not None or not place.place([call.id], lock_wait=SECOND) else seen(call)


def go(*calls: CallQueue, now: datetime = T0) -> list[UUID]:
    """Dispatch what may go of the queues of these calls, in trips until nothing does; return which calls, in order."""
    taker = Taker(queues=sorted({call.queue for call in calls}), becomes=State.DISPATCHED)
    gone: list[UUID] = []
    with stopped_clock(now):
        while trip := [each.id for each in take(taker, room=conf().batch).dispatched]:
            gone += trip
    return gone


def admitted(*keys: str, now: datetime = T0, **fields: Any) -> CallQueue:
    """Return a call that has its slots and its ticket."""
    call = waiting(*keys, **fields)
    assert go(call, now=now) == [call.id]
    return seen(call)


def started(*keys: str, now: datetime = T0, **fields: Any) -> CallQueue:
    """Return a call that a worker has claimed."""
    call = admitted(*keys, now=now, **fields)
    with stopped_clock(now):
        assert isinstance(claim.claim(call.id, ticket_of(call)), claim.Claimed)
    return seen(call)


def ended(*keys: str, now: datetime = T0, **fields: Any) -> CallQueue:
    """Return a call that has completed."""
    call = started(*keys, now=now, **fields)
    finish(call)
    return seen(call)


def finish(call: CallQueue, result: object = None) -> bool:
    """Record that the attempt of a call completed; return whether its ticket and claim still held it."""
    completed = ending.completed(result)
    return ends.record_one(Ended(call_id=call.id, ticket=ticket_of(call), claim_id=call.claim, ending=completed))


def seen(call: CallQueue) -> CallQueue:
    """Return the call as it is now."""
    return CallQueue.objects.get(id=call.id)


def erase(*calls: CallQueue) -> None:
    """Delete these calls as a statement does that knows nothing of the engine, whatever they wait for or hold."""
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM dispatcher_callqueue WHERE id = ANY (%s)", [[call.id for call in calls]])


def states(calls: Iterable[CallQueue]) -> list[State]:
    """Return where these calls stand."""
    return [State(seen(call).state) for call in calls]


def ticket_of(call: CallQueue) -> UUID:
    """Return the ticket of a call in flight."""
    assert call.ticket is not None
    return call.ticket


def held(call: CallQueue) -> InFlight:
    """Return a call in flight as its ticket names it now."""
    return InFlight(call_id=call.id, ticket=ticket_of(seen(call)))


def slots_of(call: CallQueue) -> dict[int | None, int]:
    """Return the cost that a call holds of each key."""
    return dict(Slot.objects.filter(call=call).values_list("key_id", "cost"))


def dispatched() -> int:
    """Return how many calls are admitted and have not started."""
    return CallQueue.objects.filter(state=State.DISPATCHED).count()


def snapshot() -> list[list[dict[str, Any]]]:
    """Return what the rows of calls, keys, slots and starts are."""
    return [list(model.objects.order_by("pk").values()) for model in (CallQueue, RateLimitKey, Slot, Start)]


def lane_of(call: CallQueue) -> Lane:
    """Return the lane of a call as it is now."""
    return Lane.objects.get(id=call.lane_id)


def renew(held: Sequence[heartbeat.ReservedCall], *, now: datetime | None = None) -> int:
    """Send the heartbeat of a worker that holds these; return how many slots were renewed."""
    return heartbeat.record(HERE, held, now=now).slots
