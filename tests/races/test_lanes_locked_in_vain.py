"""Invariant 6: a lane that a pass has locked in vain, since another put it to sleep meanwhile, is not lost."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction

from dispatcher import engine
from dispatcher.lifecycle import send
from dispatcher.models import CallQueue, Lane
from dispatcher.request import Call
from dispatcher.states import State
from tests import db_admin
from tests.races.audit import audit
from tests.races.lockstep import Actor, actors, concurrent
from tests.races.test_feeds import gated

pytestmark = concurrent

_GATE = 20_252
_MAKE = f"""
CREATE SCHEMA paused;
CREATE FUNCTION paused.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql
    AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared({_GATE}); RETURN pg_catalog.clock_timestamp(); END $$;
"""


def _ask_slowly() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET search_path = paused, pg_catalog, public")


@contextmanager
def stopped_at_the_clock(actor: Actor) -> Iterator[psycopg.Connection[Any]]:
    """Stop each statement of an actor where it asks for the time, after its snapshot, until the connection commits."""
    with db_admin.connect() as admin, db_admin.connect(autocommit=False) as gate:
        admin.execute(_MAKE)
        try:
            actor.do(_ask_slowly)
            gate.execute("SELECT pg_advisory_xact_lock(%s)", [_GATE])
            yield gate
        finally:
            gate.rollback()
            admin.execute("DROP SCHEMA paused CASCADE")


def held(queue: str) -> Lane:
    """Return a lane that its queue holds, with one call."""
    (call,) = send.write([send.draft(Call(), task="noop", queue=queue)])
    Lane.objects.filter(id=call.lane_id).update(is_held=True)
    return Lane.objects.get(id=call.lane_id)


def state_of(call: CallQueue) -> str:
    return CallQueue.objects.get(id=call.id).state


@pytest.mark.session
@pytest.mark.parametrize("is_lone", [True, False], ids=["alone", "in a transaction"])
def test_a_send_to_a_lane_that_a_pass_has_locked_after_another_pass_put_it_to_sleep(*, is_lone: bool) -> None:
    _, others = held("celery"), held("post")
    with actors(1) as (dispenser,), gated(f"NEW.id = {others.id}") as gate, stopped_at_the_clock(dispenser) as clock:
        passing = dispenser.begin(engine.dispense, queues=["celery", "post"])
        dispenser.wait_blocked(by=clock)
        assert engine.dispense(queues=["celery"]) == 1
        clock.rollback()
        dispenser.wait_blocked(by=gate)
        if is_lone:
            call = CallQueue.objects.send("noop")
        else:
            with transaction.atomic():
                call = CallQueue.objects.send("noop")
        gate.rollback()
        passing.result()
    assert state_of(call) == State.DISPATCHED
    audit(has_ended=False)
