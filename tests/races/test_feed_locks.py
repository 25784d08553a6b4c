"""Invariant 6 for direct delivery: a lane that a step has locked in vain, since it was put to sleep, is not lost."""

import pytest
from django.db import transaction

from dispatcher import ending
from dispatcher.engine import feed
from dispatcher.models import CallQueue, Lane, Queue, RateLimitKey
from tests import db_admin
from tests.races.lockstep import actors, concurrent
from tests.races.test_feeds import TAKER, gated

pytestmark = concurrent


@pytest.mark.parametrize("is_lone", [True, False], ids=["alone", "in a transaction"])
def test_a_send_to_a_lane_that_a_step_has_locked_after_another_put_it_to_sleep(*, is_lone: bool) -> None:
    Queue.objects.create(name="mail", delivery="direct")
    other = RateLimitKey.objects.declare("other", concurrency=5)
    running = CallQueue.objects.send("noop", queue="mail", keys=["other"])
    (start,) = feed.step(TAKER, room=1).starts
    assert start.call.id == running.id
    for keys in ([], ["other"]):
        CallQueue.objects.send("noop", queue="mail", keys=keys)
    lane, others = Lane.objects.get(key_ids=[]), Lane.objects.get(key_ids=[other.id])
    assert lane.is_held
    with actors(1) as (worker,), gated(f"NEW.id = {others.id}") as gate:
        with db_admin.connect(autocommit=False) as holder:
            holder.execute("SELECT FROM dispatcher_callqueue WHERE id = %s FOR UPDATE", [running.id])
            stepping = worker.begin(feed.step, TAKER, [start.ended(ending.completed(1))], room=1)
            worker.wait_blocked(by=holder)
            assert len(feed.step(TAKER, room=5, avoid=[other.id]).starts) == 1
            assert not feed.step(TAKER, room=5, avoid=[other.id]).starts
            lane.refresh_from_db()
            assert not lane.is_held, "it sleeps"
            holder.rollback()
        worker.wait_blocked(by=gate)
        # Its step has locked both lanes; only the other one is in it.
        if is_lone:
            call = CallQueue.objects.send("noop", queue="mail")
        else:
            with transaction.atomic():
                call = CallQueue.objects.send("noop", queue="mail")
        gate.rollback()
        made = stepping.result()
    started = [*made.starts, *feed.step(TAKER, room=5).starts]
    assert call.id in [each.call.id for each in started]
