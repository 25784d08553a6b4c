"""Invariants 1 and 6 for hand-overs, whose statement counts with a snapshot that is older than its locks."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import monotonic
from uuid import uuid4

import pytest

from dispatcher.celery.feed_agenda import Agenda
from dispatcher.engine import feed
from dispatcher.engine.feed import Start, Step
from dispatcher.lifecycle import finish
from dispatcher.models import Queue, RateLimitKey, Slot
from tests.races.lockstep import actors, concurrent, eventually, holding
from tests.steps.feeding import TAKER, done, ids, send, take

pytestmark = [concurrent, pytest.mark.session]

OTHER = replace(TAKER, worker=uuid4())
"""Another worker of the same queue."""


@contextmanager
def handing_over(start: Start) -> Iterator[list[Step]]:
    """Hand the slots of a call over, with what happens in the block between the snapshot and the locks."""
    steps: list[Step] = []
    with (
        actors(1) as (worker,),
        holding("SELECT FROM dispatcher_callqueue WHERE id = %s FOR UPDATE", [start.call.id]) as gate,
    ):
        handing = worker.begin(feed.hand_over, TAKER, done(start), room=1)
        worker.wait_blocked(by=gate)
        yield steps
        gate.rollback()
        steps.append(handing.result())


@pytest.fixture
def running() -> tuple[Start, Start]:
    """Let a call of each of two workers run, which fill a key, and others wait for it."""
    Queue.objects.create(name="mail", delivery="direct")
    RateLimitKey.objects.declare("api", concurrency=2)
    RateLimitKey.objects.declare("tenant")
    send(2, keys=["api"])
    (other,) = take(1, taker=OTHER).starts
    send(3, keys=["api"])
    (mine,) = take(1).starts
    assert mine.is_followed
    return mine, other


def test_a_slot_that_was_given_after_the_snapshot_is_not_overlooked(running: tuple[Start, Start]) -> None:
    mine, other = running
    with handing_over(mine) as steps:
        # As a limit that is raised for a moment, before anyone looks at the lane that is parked.
        RateLimitKey.objects.filter(name="api").update(concurrency=3)
        send(keys=["api", "tenant"])
        (another,) = take(1, taker=OTHER).starts
        RateLimitKey.objects.filter(name="api").update(concurrency=2)
    (step,) = steps
    assert (step.handed_over, ids(step)) == (False, [])
    assert {*Slot.objects.values_list("call_id", flat=True)} == {other.call.id, another.call.id}


def test_room_that_was_given_back_after_the_snapshot_is_used(running: tuple[Start, Start]) -> None:
    mine, other = running
    with handing_over(mine) as steps:
        # As by a worker that found the lane locked.
        finish.finish_many([done(other)])
    (step,) = steps
    assert step.handed_over
    (last,) = take(1, taker=OTHER).starts
    assert {*Slot.objects.values_list("call_id", flat=True)} == {*ids(step), last.call.id}


def test_a_lane_whose_other_key_was_locked_gets_the_room_of_the_key_that_it_is_parked_on() -> None:
    Queue.objects.create(name="mail", delivery="direct")
    RateLimitKey.objects.declare("api", concurrency=2)
    RateLimitKey.objects.declare("tenant", concurrency=1)
    send(2, keys=["api", "tenant"])
    (start,) = take(1).starts
    with holding("SELECT FROM dispatcher_ratelimitkey WHERE name = 'api' FOR UPDATE"):
        step = take(1, start)
        assert not step.starts
    agenda = Agenda()
    agenda.note_busy(step.busy, [], monotonic())
    agenda.keep_while_busy(step.freed)
    keys = eventually(lambda: (due := agenda.take_due()) >= {*step.busy, *step.freed} and due)
    assert len(take(1, keys=keys).starts) == 1
