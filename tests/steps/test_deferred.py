"""Lanes that a pass gives up, since a transaction keeps a key of theirs locked: who finds them, and how soon."""

from typing import Any
from uuid import uuid4

import pytest

from dispatcher.engine import dispenser
from dispatcher.lifecycle import heartbeat, wake
from dispatcher.models import Feed, Lane, RateLimitKey
from tests import db_admin
from tests.builders import HERE, committed
from tests.steps.feeding import TAKER, ids, send, take

pytestmark = [committed, pytest.mark.usefixtures("direct")]

LOCK = "SELECT id FROM dispatcher_ratelimitkey WHERE name = 'api' FOR UPDATE"


@pytest.mark.parametrize("is_parked", [False, True], ids=["asleep", "parked"])
def test_a_lane_of_a_direct_queue_is_left_to_its_workers_and_to_no_tick(*, is_parked: bool) -> None:
    key = RateLimitKey.objects.declare("api", concurrency=1)
    (call,) = send(keys=["api"])
    heartbeat.record(HERE, [])
    wake.mark_idle(TAKER.worker, ["mail"])
    lane = Lane.objects.get()
    # As a step leaves it that has found no call, or no room, before its commit.
    Lane.objects.update(is_held=False, parked_on=key if is_parked else None)
    with db_admin.connect(autocommit=False) as other:
        other.execute(LOCK)
        dispenser.dispense_briefly(lanes=[] if is_parked else [lane.id], keys=[key.id] if is_parked else [])
        other.rollback()
    assert Feed.objects.get().idle_at is None, "its worker was notified"
    assert ids(take(1)) == [call.id]


def test_a_key_of_a_direct_queue_that_is_not_reached_in_time_is_left_to_its_workers(settings: Any) -> None:
    settings.DISPATCHER = {"lanes_per_pass": 1}
    key, free = RateLimitKey.objects.declare("api", concurrency=1), RateLimitKey.objects.declare("free")
    (call,) = send(keys=["api"])
    Lane.objects.update(is_held=False, parked_on=key)
    with db_admin.connect(autocommit=False) as other:
        other.execute(LOCK)
        dispenser.dispense(keys=[free.id, key.id], passes=1)
        other.rollback()
    assert ids(take(1)) == [call.id]


def test_a_lane_of_a_broker_s_queue_is_left_to_the_next_pass() -> None:
    RateLimitKey.objects.declare("api")
    (call,) = send(queue=f"broker-{uuid4()}", keys=["api"])
    Lane.objects.filter(queue=call.queue).update(is_awake=False)
    with db_admin.connect(autocommit=False) as other:
        other.execute(LOCK)
        (behind,) = send(queue=call.queue, keys=["api"])
        dispenser.dispense_briefly(lanes=[behind.lane_id])
        other.rollback()
    assert Lane.objects.get(id=behind.lane_id).is_awake
