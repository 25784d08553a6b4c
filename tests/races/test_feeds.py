"""Invariant 6 for direct delivery: no wake-up of an idle worker is lost, whichever commits last."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from dispatcher.engine import feed
from dispatcher.engine.feed import Taker
from dispatcher.lifecycle import heartbeat, wake
from dispatcher.models import CallQueue, Feed, Lane, Queue, RateLimitKey, Slot
from dispatcher.request import Call
from tests import db_admin
from tests.builders import HERE
from tests.races.lockstep import actors, concurrent

pytestmark = concurrent

TAKER = Taker(worker=HERE.id, queues=["mail"], tasks=["noop"])
_GATE = 20_251

_MAKE = """
CREATE FUNCTION wait_at_gate() RETURNS trigger LANGUAGE plpgsql
    AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared({gate}); RETURN NEW; END $$;
CREATE TRIGGER gate BEFORE UPDATE ON dispatcher_lane FOR EACH ROW WHEN ({change}) EXECUTE FUNCTION wait_at_gate();
"""
_DROP = "DROP TRIGGER gate ON dispatcher_lane; DROP FUNCTION wait_at_gate()"


@contextmanager
def gated(change: str) -> Iterator[psycopg.Connection[Any]]:
    """Stop each statement that changes a lane so, in its middle, until the connection rolls back."""
    with db_admin.connect() as admin, db_admin.connect(autocommit=False) as gate:
        admin.execute(_MAKE.format(gate=_GATE, change=change))
        try:
            gate.execute("SELECT pg_advisory_xact_lock(%s)", [_GATE])
            yield gate
        finally:
            gate.rollback()
            admin.execute(_DROP)


@pytest.mark.session
def test_a_worker_that_becomes_idle_while_a_send_holds_its_lane_is_woken() -> None:
    Queue.objects.create(name="mail", delivery="direct")
    heartbeat.record(HERE, [])
    for _ in ("makes the lane", "learns that the queue is direct"):
        CallQueue.objects.send("noop", queue="mail")
    feed.step(TAKER, room=2)
    feed.step(TAKER, room=2)
    assert not Lane.objects.get().is_held
    with actors(1) as (sender,), gated("NEW.is_held AND NOT OLD.is_held") as gate:
        sending = sender.begin(CallQueue.objects.send, "noop", queue="mail")
        sender.wait_blocked(by=gate)
        wake.mark_idle(HERE.id, ["mail"])
        assert feed.step(TAKER, room=2).starts == [], "its look after the mark; the lane is not held yet"
        gate.rollback()
        call = sending.result()
    assert Lane.objects.get().is_held
    assert Feed.objects.get().idle_at is None, "it was notified"
    assert [start.call.id for start in feed.step(TAKER, room=2).starts] == [call.id]


def test_a_send_whose_lane_a_step_has_locked_takes_no_mark_without_a_notification() -> None:
    Queue.objects.create(name="mail", delivery="direct")
    heartbeat.record(HERE, [])
    for _ in ("makes the lane", "learns that the queue is direct"):
        CallQueue.objects.send("noop", queue="mail")
    feed.step(TAKER, room=2)
    feed.step(TAKER, room=2)
    wake.mark_idle(HERE.id, ["mail"])
    with db_admin.connect(autocommit=False) as step:
        step.execute("SELECT FROM dispatcher_lane FOR NO KEY UPDATE")
        CallQueue.objects.send("noop", queue="mail")
        step.rollback()
    assert not Lane.objects.get().is_held, "it is left to the step, which looks again after its commit"
    assert Feed.objects.get().idle_at is not None


@pytest.mark.session
def test_workers_keep_their_parts_of_a_key_and_reach_its_limit_together() -> None:
    Queue.objects.create(name="mail", delivery="direct")
    key = RateLimitKey.objects.declare("exports", concurrency=5, per_worker=2)
    CallQueue.objects.send_many([Call(task="noop", queue="mail", keys=["exports"]) for _ in range(20)])
    takers = [Taker(worker=uuid4(), queues=["mail"], tasks=["noop"]) for _ in range(3)]
    with actors(6) as many:
        for _ in range(5):
            # Two connections of each worker at the same time: an answer may be lost, and its step still run.
            stepping = [
                each.begin(feed.step, taker, room=4) for each, taker in zip(many, [*takers, *takers], strict=True)
            ]
            for step in stepping:
                step.result()
            held = Counter(Slot.objects.filter(key=key).values_list("worker_id", flat=True))
            assert max(held.values(), default=0) <= 2
            assert held.total() <= 5
    # The first worker of a round may have kept the lane locked from the others, in each round.
    for taker in takers:
        feed.step(taker, room=4)
    held = Counter(Slot.objects.filter(key=key).values_list("worker_id", flat=True))
    assert sorted(held.values()) == [1, 2, 2]
