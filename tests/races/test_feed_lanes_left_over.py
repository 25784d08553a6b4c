"""Invariant 6 for direct delivery: a lane that a step has locked, and has no place for, is not lost."""

from dataclasses import replace

import pytest
from django.db import transaction

from dispatcher import ending
from dispatcher.engine import feed
from dispatcher.models import CallQueue, Lane, Queue, RateLimitKey
from tests import db_admin
from tests.races.lockstep import actors, concurrent
from tests.races.test_feeds import TAKER, gated

pytestmark = concurrent

BOTH = replace(TAKER, queues=["mail", "post"])
POST = replace(TAKER, queues=["post"])


@pytest.mark.parametrize("is_lone", [True, False], ids=["alone", "in a transaction"])
def test_a_send_to_a_lane_that_a_step_has_locked_beside_those_that_it_takes(*, is_lone: bool) -> None:
    for name in BOTH.queues:
        Queue.objects.create(name=name, delivery="direct")
    for number in range(3):
        RateLimitKey.objects.declare(f"tenant:{number}", concurrency=5)
    running = CallQueue.objects.send("noop", queue="mail", keys=["tenant:0"])
    (start,) = feed.step(BOTH, room=1).starts
    for number in range(3):
        CallQueue.objects.send("noop", queue="mail", keys=[f"tenant:{number}"], priority=1)
    CallQueue.objects.send("noop", queue="post")
    lane = Lane.objects.get(queue="post")
    assert lane.is_held
    with actors(1) as (worker,), gated("NEW.queue = 'mail'") as gate:
        with db_admin.connect(autocommit=False) as holder:
            holder.execute("SELECT FROM dispatcher_callqueue WHERE id = %s FOR UPDATE", [running.id])
            stepping = worker.begin(feed.step, BOTH, [start.ended(ending.completed(1))], room=1)
            worker.wait_blocked(by=holder)
            assert len(feed.step(POST, room=5).starts) == 1
            assert not feed.step(POST, room=5).starts
            lane.refresh_from_db()
            assert not lane.is_held, "it sleeps"
            holder.rollback()
        worker.wait_blocked(by=gate)
        # Its step has locked the three lanes of one queue, which it takes, and the lane of the other.
        if is_lone:
            call = CallQueue.objects.send("noop", queue="post")
        else:
            with transaction.atomic():
                call = CallQueue.objects.send("noop", queue="post")
        gate.rollback()
        made = stepping.result()
    lane.refresh_from_db()
    started = [*made.starts]
    for _ in range(5):
        started += feed.step(BOTH, room=5).starts
    assert call.id in [each.call.id for each in started]
