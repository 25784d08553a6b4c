"""A table that is locked for longer than a lease (VACUUM FULL, an ALTER that rewrites it) costs no call its slots.

No lease can be renewed meanwhile. Time does not pass in these tests: while the lock is held, the leases and the time
of the latest look are moved back by an hour.
"""

from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest
from pytest_django import Settings

from dispatcher import engine
from dispatcher.lifecycle import claim, heartbeat, recover
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.states import State
from tests.builders import HERE, states, ticket_of
from tests.races.lockstep import DEADLINE, actors, concurrent, holding
from tests.races.traffic import in_flight

pytestmark = [concurrent, pytest.mark.server]

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


def running(count: int = 4) -> list[CallQueue]:
    """Start calls that fill a key, in a worker that lives, and let recovery look once."""
    RateLimitKey.objects.declare("api", concurrency=count)
    calls = in_flight("api", count=count)
    for call in calls:
        claim.claim(call.id, ticket_of(call), worker=HERE.id)
    assert engine.recover() == 0
    return calls


@pytest.fixture
def after_the_look(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Event, Event]]:
    """Stop recovery between its look and the rows: the first event says that it is there, the second lets it go on."""
    arrived, go_on = Event(), Event()
    look = recover.judged_until

    def look_and_stop() -> Any:
        until = look()
        arrived.set()
        assert go_on.wait(DEADLINE)
        return until

    monkeypatch.setattr(recover, "judged_until", look_and_stop)
    yield arrived, go_on
    go_on.set()


def test_a_lock_that_comes_between_the_look_and_the_rows_takes_no_call_from_its_worker(
    after_the_look: tuple[Event, Event],
) -> None:
    arrived, go_on = after_the_look
    go_on.set()
    calls = running()
    arrived.clear()
    go_on.clear()
    with actors(1) as (recovery,):
        recovering = recovery.begin(engine.recover)
        assert arrived.wait(DEADLINE)
        with holding("LOCK TABLE dispatcher_callqueue IN ACCESS EXCLUSIVE MODE") as holder:
            go_on.set()
            recovery.wait_blocked(by=holder)
            # Less than an hour: the leases run out after the look, as they do where time passes by itself.
            holder.execute("UPDATE dispatcher_slot SET lease_until = clock_timestamp()")
            holder.commit()
        assert recovering.result(DEADLINE) == 0
    assert states(calls) == [State.ACTIVE] * len(calls)
