"""Invariant 6 for direct delivery: no wake-up of an idle worker is lost, whichever commits last."""

import pytest

from dispatcher.engine import direct
from dispatcher.lifecycle import heartbeat, wake
from dispatcher.lifecycle.take import Taker
from dispatcher.models import CallQueue, Feed, Queue
from tests.builders import HERE
from tests.races.lockstep import actors, concurrent, gated

pytestmark = concurrent

TAKER = Taker(worker=HERE.id, queues=["mail"], tasks=["noop"])


@pytest.mark.session
def test_a_worker_that_becomes_idle_before_a_send_commits_is_woken() -> None:
    Queue.objects.create(name="mail", delivery="direct")
    heartbeat.record(HERE, [])
    CallQueue.objects.send("noop", queue="mail")
    assert len(direct.step(TAKER, room=2).starts) == 1
    with actors(1) as (sender,), gated("dispatcher_note") as gate:
        sending = sender.begin(CallQueue.objects.send, "noop", queue="mail")
        sender.wait_blocked(by=gate)
        wake.mark(HERE.id, ["mail"], is_idle=True)
        assert direct.step(TAKER, room=2).starts == [], "its look after the mark; the call is not committed yet"
        gate.rollback()
        call = sending.result()
    assert Feed.objects.get().idle_at is None, "it was notified"
    assert [start.call.id for start in direct.step(TAKER, room=2).starts] == [call.id]
