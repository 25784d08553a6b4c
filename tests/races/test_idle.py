"""Processes and their marks: no wake-up of an idle one is lost (invariant 6), and none waits for another's."""

from time import monotonic
from uuid import uuid4

import pytest

from dispatcher.ending import completed
from dispatcher.engine import direct
from dispatcher.lifecycle import heartbeat, wake
from dispatcher.lifecycle.take import Taker
from dispatcher.models import CallQueue, Process, Queue
from tests.builders import HERE
from tests.deliveries.direct import begin_process
from tests.races.lockstep import actors, concurrent, eventually, gated, holding

pytestmark = concurrent

PROCESS = uuid4()
TAKER = Taker(worker=HERE.id, process=PROCESS, queues=["mail"], tasks=["noop"])


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


@pytest.mark.session
def test_a_trip_does_not_wait_for_who_takes_its_mark() -> None:
    Queue.objects.create(name="mail", delivery="direct")
    heartbeat.record(HERE, [])
    begin_process(TAKER)
    assert direct.step(TAKER, room=2, may_rest=True).starts == []
    call = CallQueue.objects.send("noop", queue="mail")
    (run,) = direct.step(TAKER, room=1).starts
    assert run.call.id == call.id
    with holding("UPDATE dispatcher_process SET idle_at = NULL"):
        taken = direct.step(TAKER, [run.ended(completed(None))], room=2, may_rest=True)
        assert taken.ended == [call.id]
        assert taken.again_at is not None, "it has no mark yet"


def test_a_heartbeat_does_not_wait_for_who_changes_the_row_of_its_worker() -> None:
    heartbeat.record(HERE, [])
    with actors(1) as (worker,), holding("UPDATE dispatcher_worker SET host = 'elsewhere'"):
        worker.do(heartbeat.record, HERE, [])


@pytest.mark.session
def test_a_process_that_opens_a_session_does_not_wait_for_who_takes_its_mark() -> None:
    heartbeat.record(HERE, [])
    wake.serve(PROCESS, HERE.id, ["mail"])
    with actors(1) as (process,), holding("UPDATE dispatcher_process SET idle_at = NULL"):
        process.do(wake.serve, PROCESS, HERE.id, ["mail"])
