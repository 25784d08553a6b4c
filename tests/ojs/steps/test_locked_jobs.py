"""A user's transaction that keeps the row of a job locked stops the end of its call, and nothing else."""

from datetime import timedelta
from uuid import uuid4

import pytest
from django.utils import timezone

from dispatcher import ending
from dispatcher.engine import direct
from dispatcher.lifecycle.take import Taker
from dispatcher.models import CallQueue, Queue
from dispatcher.ojs.models import Job
from dispatcher.states import State
from tests.builders import HERE, committed, states
from tests.races.lockstep import eventually, holding

pytestmark = [committed, pytest.mark.server]

LOCK = "SELECT FROM dispatcher_ojs_job WHERE call_id = %s FOR UPDATE"
TAKER = Taker(worker=HERE.id, process=uuid4(), queues=["mail"], tasks=["noop"])


@pytest.fixture(autouse=True)
def _direct(db: None) -> None:
    Queue.objects.create(name="mail", delivery="direct")


def send(**options: object) -> CallQueue:
    """Send a call whose end its job must know."""
    call = CallQueue.objects.send("noop", queue="mail", **options)
    Job.objects.create(call=call, created_at=call.created_at, unique_key=str(call.id))
    return call


def test_an_end_whose_job_is_locked_is_brought_again_and_all_else_goes_on() -> None:
    calls = [send() for _ in range(3)]
    ends = [start.ended(ending.completed(None)) for start in direct.step(TAKER, room=2).starts]
    with holding(LOCK, [calls[0].id]):
        taken = direct.step(TAKER, ends, room=1)
        assert (taken.ended, taken.locked) == ([calls[1].id], [calls[0].id])
        assert [start.call.id for start in taken.starts] == [calls[2].id]
    assert direct.step(TAKER, ends[:1], room=0).ended == [calls[0].id]
    assert [job.outcome for job in Job.objects.order_by("call_id")] == ["completed", "completed", "open"]


def test_a_call_that_expires_while_its_job_is_locked_stops_no_other_and_no_process() -> None:
    expired, other = send(expires_at=timezone.now() + timedelta(milliseconds=50)), send()
    eventually(lambda: timezone.now() > expired.expires_at)
    with holding(LOCK, [expired.id]):
        assert [start.call.id for start in direct.step(TAKER, room=1).starts] == [other.id]
        taken = direct.step(TAKER, room=1, may_rest=True)
        assert taken.again_at is not None
        assert taken.again_at > taken.at
        assert states([expired]) == [State.AVAILABLE]
    direct.step(TAKER, room=1)
    assert states([expired]) == [State.DISCARDED]
    assert Job.objects.get(call=expired).outcome == "discarded"
