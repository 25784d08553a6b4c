"""Invariant 6 for direct delivery: no wake-up of an idle process is lost, whichever commits last."""

from time import monotonic
from uuid import uuid4

import pytest

from dispatcher.engine import direct
from dispatcher.lifecycle import heartbeat
from dispatcher.lifecycle.take import Taker
from dispatcher.models import CallQueue, Process, Queue
from tests.builders import HERE
from tests.deliveries.direct import begin_process
from tests.races.lockstep import actors, concurrent, eventually, gated

pytestmark = concurrent

TAKER = Taker(worker=HERE.id, process=uuid4(), queues=["mail"], tasks=["noop"])


@pytest.mark.session
def test_a_process_that_becomes_idle_before_a_send_commits_is_woken() -> None:
    Queue.objects.create(name="mail", delivery="direct")
    heartbeat.record(HERE, [])
    begin_process(TAKER)
    CallQueue.objects.send("noop", queue="mail")
    assert len(direct.step(TAKER, room=2).starts) == 1
    with actors(1) as (sender,), gated("dispatcher_note") as gate:
        sending = sender.begin(CallQueue.objects.send, "noop", queue="mail")
        sender.wait_blocked(by=gate)
        assert direct.step(TAKER, room=2, may_rest=True).starts == [], "the call is not committed yet"
        assert Process.objects.get().idle_at is not None
        assert direct.step(TAKER, room=2, is_marked=True, may_rest=True).starts == [], "nor when it looks once more"
        looked_at = monotonic()
        eventually(lambda: monotonic() > looked_at + 0.02)
        gate.rollback()
        call = sending.result()
    assert Process.objects.get().idle_at is None, "it was notified"
    assert [start.call.id for start in direct.step(TAKER, room=2).starts] == [call.id]
