"""`take` against its reference, on random systems: what each trip answers, and all that it leaves."""

from collections.abc import Iterator
from random import Random
from typing import Any

import psycopg
import pytest
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.rules import reference
from tests.rules.reference import MILLISECOND, SECOND, End, Trip, Tuning
from tests.rules.systems import (
    BEGIN,
    QUEUES,
    WORKERS,
    back,
    call_take,
    held_in_database,
    held_in_memory,
    load,
    random_system,
)

TRIPS = 14
STEPS = [0, 1 * MILLISECOND, 6 * MILLISECOND, 60 * MILLISECOND, 200 * MILLISECOND, SECOND, 3500 * MILLISECOND]


@pytest.fixture
def db(transactional_db: None) -> Iterator[psycopg.Connection]:
    """Return a connection of its own that commits each statement."""
    with psycopg.connect(**connection.get_connection_params(), autocommit=True) as connected:
        yield connected


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_take_does_what_its_reference_does(db: psycopg.Connection, seed: int) -> None:
    compare(db, Random(seed))


def compare(db: psycopg.Connection, rnd: Random) -> int:
    """Make trips in the database and in memory; return how many calls have started."""
    state = random_system(rnd)
    load(db, state)
    tuning = random_tuning(rnd)
    now, started = BEGIN, 0
    for _ in range(TRIPS):
        now += rnd.choice(STEPS)
        trip = random_trip(rnd, state, now, tuning)
        rows = call_take(db, trip)
        expected = reference.take(state, trip)
        *calls, last = rows
        assert [row.id for row in calls if row.fate is None] == expected.started, trip
        fates = {row.id: row.fate for row in calls if row.fate is not None}
        assert fates == expected.fates, trip
        answer = {
            "wake": {*last.wake},
            "publish": {*last.publish},
            "again_at": back(last.again_at),
            "ended": {*last.ended},
            "freed": {*(last.freed or ())},
            "locked": [*last.locked],
        }
        wanted = {name: getattr(expected, name, []) for name in answer}
        assert answer == wanted, (different(answer, wanted), trip)
        memory, database = held_in_memory(state), held_in_database(db)
        for name, there in database.items():
            assert there == memory[name], (name, different(there, memory[name]), trip)
        started += len(expected.started)
    return started


def different(there: Any, here: Any) -> list[Any]:
    """Return what the database and the reference hold differently."""
    return [(id, there.get(id), here.get(id)) for id in {*there, *here} if there.get(id) != here.get(id)]


def random_tuning(rnd: Random) -> Tuning:
    """Return durations."""
    horizon, margin = rnd.choice([(5 * MILLISECOND, 30 * MILLISECOND), (200 * MILLISECOND, 50 * MILLISECOND)])
    return Tuning(
        horizon=horizon,
        margin=margin,
        keep=rnd.choice([20 * MILLISECOND, 500 * MILLISECOND]),
        silence=rnd.choice([SECOND, 60 * SECOND]),
        ahead=rnd.choice([2, 5, 10_000]),
        needs_worker=rnd.random() < 0.3,
    )


def random_trip(rnd: Random, state: reference.State, now: int, tuning: Tuning) -> Trip:
    """Return a trip of a worker, of a dispenser, or of none that is known."""
    pick = rnd.choice
    worker = pick([None, *WORKERS])
    queues = state.workers[worker].queues if worker in state.workers else rnd.sample(QUEUES, rnd.randint(1, 3))
    becomes = pick(["active"] * 4 + ["dispatched"]) if worker else "dispatched"
    held = [call for call in state.calls if call.state == "active"]
    is_weighted = rnd.random() < 0.3
    return Trip(
        now=now,
        worker=worker,
        queues=queues,
        tasks=pick([None, ["t"], ["t"], ["t", "new"]]),
        room=pick([0, 1, 1, 2, 4]),
        becomes=becomes,
        publish=pick([0, 0, 1, 3]),
        is_marked=rnd.random() < 0.5,
        keys=[pick([*state.keys, 98])] if rnd.random() < 0.2 else [],
        ends=[_random_end(rnd, call) for call in held if rnd.random() < 0.5],
        due=[pick([0, 1, 5]) for _ in queues] if is_weighted else None,
        stride=[pick([2, 3, 6]) for _ in queues] if is_weighted else None,
        is_strict=rnd.random() < 0.1,
        tuning=tuning,
    )


def _random_end(rnd: Random, call: reference.Call) -> End:
    state, wait = rnd.choice([("completed", None)] * 4 + [("retryable", 500 * MILLISECOND), ("available", None)])
    return End(call=call, state=state, wait=wait, is_stale=rnd.random() < 0.05)
