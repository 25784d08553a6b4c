"""A table that is locked for longer than a lease costs no fetched call its slots."""

from collections.abc import Callable

import pytest
from pytest_django import Settings

from dispatcher import engine
from dispatcher.lifecycle import heartbeat
from dispatcher.models import CallQueue
from dispatcher.ojs import fetch, pull_workers, queues
from dispatcher.ojs.fetch import FetchRequest
from dispatcher.ojs.reclaim import reclaim
from dispatcher.states import State
from tests import db_admin
from tests.builders import HERE, states, ticket_of
from tests.races.lockstep import DEADLINE, actors, concurrent, holding

pytestmark = concurrent

TABLES = ("dispatcher_callqueue", "dispatcher_slot", "dispatcher_worker")
# What a lock of calls leaves open, and so could be written while it is held.
HOUR_LATER = """
UPDATE dispatcher_slot
   SET lease_until = lease_until - interval '1 hour', pulled_until = pulled_until - interval '1 hour';
UPDATE dispatcher_worker SET seen_at = seen_at - interval '1 hour';
UPDATE dispatcher_leasecheck SET checked_at = checked_at - interval '1 hour', since = since - interval '1 hour';
"""


@pytest.fixture(autouse=True)
def _worker(settings: Settings) -> None:
    settings.DISPATCHER = {"queue_grace": 30}
    heartbeat.record(HERE, [])


def held(calls: list[CallQueue]) -> list[heartbeat.ReservedCall]:
    return [(call.id, ticket_of(call)) for call in calls]


@pytest.mark.parametrize("look", [reclaim, engine.recover])
def test_calls_that_were_fetched_keep_their_slots_while_a_table_is_locked(look: Callable[[], int]) -> None:
    queues.open_queue("jobs")
    CallQueue.objects.send("noop", queue="jobs")
    (call,) = fetch.fetch(FetchRequest(queues=["jobs"], worker="one"))
    engine.recover()
    with actors(2) as (tick, worker):
        with holding("LOCK TABLE dispatcher_callqueue IN ACCESS EXCLUSIVE MODE") as holder:
            # Seen by the tick, which then waits for the calls.
            with db_admin.connect() as other:
                other.execute(HOUR_LATER)
            looking = tick.begin(look)
            tick.wait_blocked(by=holder)
            holder.commit()
        assert looking.result(DEADLINE) == 0
        assert worker.do(pull_workers.heartbeat, "one", [call.id]).kept == [call.id]
    assert reclaim() == 0
    assert states([call]) == [State.ACTIVE]
