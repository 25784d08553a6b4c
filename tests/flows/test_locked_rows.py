"""Flows beside a user's transaction that keeps a row locked: what runs goes on, and nothing runs twice."""

import time

import pytest

from tests.flows import sample_tasks
from tests.flows.one_slot import ended, running, send, start
from tests.flows.processes import Processes
from tests.flows.settings import DISPATCHER
from tests.races.lockstep import concurrent, holding

pytestmark = [
    concurrent,
    pytest.mark.usefixtures("one_slot", "ticking"),
    pytest.mark.direct,
    pytest.mark.slow,
]

LEASE_S = DISPATCHER["run_lease"].total_seconds()


@pytest.mark.parametrize("delivery", ["direct", "broker"], indirect=True)
def test_a_call_outlives_a_lock_on_the_row_of_its_worker(processes: Processes) -> None:
    worker = start(processes)
    call = running(send(sample_tasks.nap, 3 * LEASE_S))
    with holding("SELECT FROM dispatcher_worker WHERE id = %s FOR UPDATE", [worker.id]):
        time.sleep(2 * LEASE_S)
    call = ended(call)
    assert (call.state, call.attempt, call.errors) == ("completed", 1, [])
    assert processes.noted(call.id) == 1
    worker.refresh_from_db()
    assert worker.lost_at is None
