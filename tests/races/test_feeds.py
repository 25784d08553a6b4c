"""Invariant 6 for direct delivery: no wake-up of an idle worker is lost, whichever commits last."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from dispatcher.engine import feed
from dispatcher.engine.feed import Taker
from dispatcher.lifecycle import heartbeat, wake
from dispatcher.models import CallQueue, Feed, Lane, Queue
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
