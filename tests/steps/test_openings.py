"""A call that is too dear just now shuts its key no longer than it waits: what a full queue drops, what is replaced."""

import pytest
from django.db import transaction
from django.utils import timezone

from dispatcher import engine
from dispatcher.lifecycle import place, send
from dispatcher.models import CallQueue
from dispatcher.request import Call
from dispatcher.states import State
from tests.builders import SECOND, committed, go, key, lane_of, seen, start, states, waiting

pytestmark = [committed, pytest.mark.pooler]

HOUR = 3600


def test_a_cheap_call_that_gets_its_lane_late_goes_before_a_dear_one_that_was_sent_later() -> None:
    key("api", rate=(10, HOUR))
    running = waiting(costs={"api": 8})
    assert go(running, now=timezone.now()) == [running.id]
    start(seen(running), now=timezone.now())
    with transaction.atomic():
        # In a transaction it is written without a lane, and this sender dies before its hook.
        (cheap,) = send.write([send.draft(Call(task="noop", keys=["api"]), task="noop", queue="late")])
    assert cheap.lane_id is None
    (dear,) = CallQueue.objects.send_many([Call(task="noop", keys={"api": 5}, queue="late")])
    assert lane_of(dear).parked_on is not None
    engine.place_and_dispense([cheap.id], lock_wait=SECOND)
    assert states([cheap, dear]) == [State.DISPATCHED, State.AVAILABLE]
    assert place.next_unplaced(place.FIRST, 10).calls == []
