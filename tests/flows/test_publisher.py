"""Flows of workers whose calls the broker delivers: who sends wakes one of them, which publishes. Nothing ticks."""

import os
import signal
from collections.abc import Iterator

import pytest
from django.db import connection

from dispatcher.messages import broker
from dispatcher.models import CallQueue, Process, Worker
from dispatcher.states import State
from tests import db_admin
from tests.flows import sample_tasks
from tests.flows.one_slot import ended, send, start
from tests.flows.processes import Processes
from tests.flows.sample_tasks import app
from tests.flows.settings import ELSEWHERE, QUEUE
from tests.races.lockstep import concurrent, eventually

SESSIONS = """
    SELECT count(*) FROM pg_locks JOIN pg_database AS place ON place.oid = database
     WHERE locktype = 'advisory' AND granted AND datname = %s
"""
CUT = """
    SELECT count(pg_terminate_backend(pid)) FROM pg_locks JOIN pg_database AS place ON place.oid = database
     WHERE locktype = 'advisory' AND granted AND datname = %s
"""
"""A publisher holds the lock of its session."""

pytestmark = [
    concurrent,
    pytest.mark.usefixtures("one_slot"),
    pytest.mark.parametrize("delivery", ["broker"], indirect=True),
    pytest.mark.broker,
    pytest.mark.slow,
]


@pytest.fixture(autouse=True)
def _without_a_broker() -> Iterator[None]:
    """Let this process publish nothing."""
    with broker.kept_to_itself():
        yield


def idle(worker: Worker) -> Process:
    """Wait until the publisher of a worker has nothing to do."""
    return eventually(Process.objects.filter(worker_id=worker.id, idle_at__isnull=False).first)


def has_run_once(call: CallQueue) -> bool:
    end = ended(call)
    return (end.state, end.attempt) == (State.COMPLETED, 1)


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_a_sender_that_reaches_no_broker_wakes_a_worker_that_publishes(processes: Processes, pool: str) -> None:
    worker = start(processes, "-P", pool, "-c", "2")
    for _ in range(3):
        idle(worker)
        calls = [send(sample_tasks.echo, "hello") for _ in range(3)]
        assert all(has_run_once(call) for call in calls)
    processes.stack.stop("worker")
    assert not Process.objects.filter(worker_id=worker.id).exists(), "who has stopped must not be woken"


def test_a_call_whose_publisher_is_frozen_is_published_by_another_one(processes: Processes) -> None:
    """RabbitMQ may have given its message to the frozen worker; what that has, recovery puts back."""
    frozen = start(processes)
    # It has been idle for longest, so it is woken first.
    idle(frozen)
    processes.start_worker("second")
    processes.stack.wait_ready()
    eventually(lambda: Process.objects.filter(idle_at__isnull=False).count() == 2)
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        call = send(sample_tasks.echo, "hello")
        eventually(CallQueue.objects.filter(id=call.id, published_at__isnull=False).first)
    finally:
        os.kill(frozen.pid, signal.SIGCONT)


def test_a_publisher_whose_connection_was_cut_makes_another_one(processes: Processes) -> None:
    worker = start(processes)
    idle(worker)
    assert db_admin.monitor().execute(CUT, [connection.settings_dict["NAME"]]).fetchone() == (1,)
    assert has_run_once(send(sample_tasks.echo, "hello"))


def test_a_publisher_whose_main_process_was_killed_is_over_though_a_child_goes_on(processes: Processes) -> None:
    worker = start(processes, "-P", "prefork", "-c", "1", "--max-tasks-per-child", "1")
    idle(worker)
    # The process that runs the next one was forked after the publisher had connected.
    assert has_run_once(send(sample_tasks.echo, "hello"))
    call = send(sample_tasks.outlive_its_main_process, 20)
    eventually(lambda: not processes.stack.children["worker"].is_running())
    name = connection.settings_dict["NAME"]
    eventually(lambda: db_admin.monitor().execute(SESSIONS, [name]).fetchone() == (0,))
    assert processes.noted(call.id, "end") == 0, "the child has ended, too"


def test_an_idle_publisher_is_known_by_the_queues_that_its_worker_has_by_now(processes: Processes) -> None:
    worker = start(processes)
    idle(worker)
    marked = Process.objects.filter(worker_id=worker.id, idle_at__isnull=False)
    for change, queues in ((app.control.add_consumer, [QUEUE, ELSEWHERE]), (app.control.cancel_consumer, [QUEUE])):
        change(ELSEWHERE, destination=[worker.name])
        eventually(lambda queues=queues: [sorted(each.queues) for each in marked.all()] == [sorted(queues)])
