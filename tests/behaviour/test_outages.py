"""Leases are judged in the end, however rare looks are, and never for a time in which they could not be renewed."""

from typing import Any

import pytest
from django.db.models import Model

from dispatcher.models import CallQueue, Slot, Worker
from dispatcher.states import State
from tests import faults
from tests.drive import Drive, Run

OUTAGE = 600


@pytest.fixture(autouse=True)
def _leases(drive: Drive, settings: Any) -> None:
    settings.DISPATCHER = {"run_lease": 60, "visibility": 60, "heartbeat": 15, "recover_every": 10}


def started(drive: Drive) -> Run:
    drive.send()
    (run,) = drive.take()
    drive.beat(run)
    return run


@pytest.mark.parametrize("every", [10, 31, 300])
def test_the_lease_of_a_silent_worker_is_judged_soon_after_it_is_over_however_rare_looks_are(
    drive: Drive, every: int
) -> None:
    faults.watch(drive, every, every=every)
    run = started(drive)
    judged_after = 0
    while drive.state(run) == State.ACTIVE:
        faults.watch(drive, every, every=every)
        judged_after += every
    assert 60 <= judged_after <= max(60 + 30 + 2 * every, 2 * every)


def test_a_lease_that_is_renewed_between_rare_looks_is_not_judged(drive: Drive) -> None:
    run = started(drive)
    for _ in range(4):
        for _ in range(20):
            drive.clock.forward(15)
            assert drive.beat(run) == 1
        faults.watch(drive, 1, every=1)
        assert drive.state(run) == State.ACTIVE


@pytest.mark.parametrize("every", [10, 30])
def test_a_lease_that_ran_out_while_the_database_was_away_is_given_time(drive: Drive, every: int) -> None:
    run = started(drive)
    for _ in range(3):
        faults.watch(drive, every, every=every)
        drive.beat(run)
    # Nothing can renew or recover.
    drive.clock.forward(OUTAGE)
    faults.watch(drive, 20, every=10)
    assert drive.state(run) == State.ACTIVE
    assert drive.beat(run) == 1
    faults.watch(drive, 50, every=10)
    assert drive.state(run) == State.ACTIVE
    assert drive.end(run)


def test_a_lease_without_renewal_after_an_outage_is_judged_two_heartbeats_later(drive: Drive) -> None:
    faults.watch(drive, 10)
    run = started(drive)
    drive.clock.forward(OUTAGE)
    faults.watch(drive, 30, every=10)
    assert drive.state(run) == State.ACTIVE
    faults.watch(drive, 20, every=10)
    assert drive.state(run) != State.ACTIVE


@pytest.mark.parametrize("model", [CallQueue, Slot, Worker])
def test_a_table_that_is_locked_for_longer_than_a_lease_costs_no_call_its_slots(
    drive: Drive, model: type[Model]
) -> None:
    """As VACUUM FULL locks it, or an ALTER that rewrites it: no lease can be renewed meanwhile."""
    run = started(drive)
    faults.watch(drive, 20)
    drive.beat(run)
    faults.recover_through_a_lock(drive, model, seconds=3600)
    assert drive.state(run) == State.ACTIVE
    assert drive.beat(run) == 1
    faults.watch(drive, 50)
    assert drive.state(run) == State.ACTIVE


# What is fetched over HTTP has its own time limit.
@pytest.mark.deliveries("direct", "broker")
def test_a_worker_that_comes_back_after_it_was_given_up_runs_calls_again(drive: Drive) -> None:
    lost = started(drive)
    faults.watch(drive, 120)
    assert drive.state(lost) != State.ACTIVE
    run = started(drive)
    faults.watch(drive, 40)
    assert drive.state(run) == State.ACTIVE


# A crash of a database that does not wait for the disk may lose the commit of a start. Only a broker's message starts
# its call by a commit of its own.


@pytest.mark.deliveries("broker")
@pytest.mark.parametrize("error", [None, ValueError()], ids=["completed", "failed"])
def test_an_end_proves_a_start_that_a_crash_of_the_database_has_lost(drive: Drive, error: Exception | None) -> None:
    drive.key(rate=(1, 60), throttle=(1, 10))
    drive.send("api")
    (run,) = drive.take()
    faults.lose_start(run)
    drive.clock.forward(5)
    assert drive.end(run, error=error)
    row = drive.row(run)
    assert (row.state, row.attempt) == ("retryable" if error else "completed", 1)
    assert row.started_at is not None
    drive.send("api")
    # It counts as if it had started when it was admitted, or when it ended, whichever is later.
    drive.forward(59)
    assert drive.take() == []
    drive.forward(6)
    assert len(drive.take()) == 1
