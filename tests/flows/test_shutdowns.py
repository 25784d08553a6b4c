"""Flows of workers that shut down: warm, cold, and while the database does not answer."""

import os
import signal
from datetime import datetime, timedelta
from pathlib import Path

import psutil
import pytest

from dispatcher.models import CallQueue, RateLimitKey, Worker
from dispatcher.states import State
from tests.flows import sample_tasks
from tests.flows.one_slot import BOTH, ended, send, start
from tests.flows.processes import Processes
from tests.flows.settings import DISPATCHER
from tests.races.lockstep import eventually, holding
from trials.chaos.proxy import Proxy

pytestmark = BOTH

LEASE: timedelta = DISPATCHER["run_lease"]


@pytest.mark.parametrize("pool", [pytest.param("prefork", marks=pytest.mark.smoke), "threads", "gevent", "solo"])
def test_a_warm_shutdown_ends_what_runs_and_hands_back_the_rest_at_once(processes: Processes, pool: str) -> None:
    worker = start(processes, "-P", pool, "-c", "1", "--prefetch-multiplier", "4")
    runs = send(sample_tasks.nap, 1.5 * LEASE.total_seconds())
    # A direct call is active before a process runs it.
    eventually(lambda: processes.noted(runs.id))
    fetched = [send(sample_tasks.echo, "next", keys=[]) for _ in range(2)]
    os.kill(processes.stack.children["worker"].pid, signal.SIGTERM)
    stopped = eventually(Worker.objects.filter(id=worker.id, stopped_at__isnull=False).first)
    assert stopped.seen_at - stopped.started_at < timedelta(seconds=10)
    call = ended(runs)
    assert (call.state, call.attempt, call.errors) == (State.COMPLETED, 1, [])
    processes.stack.children.pop("worker").popen.wait(10)
    start(processes)
    assert [(ended(call).state, ended(call).attempt) for call in fetched] == [(State.COMPLETED, 1)] * 2
    assert processes.noted(runs.id) == 1


def test_a_worker_that_has_stopped_collects_no_modules_before_it_ends(processes: Processes, tmp_path: Path) -> None:
    start(processes, env={"FLOWS_EXIT": str(tmp_path / "exit")})
    processes.stack.stop("worker")
    # With Django there are hundreds of thousands, and to collect them takes up to a second.
    assert int((tmp_path / "exit").read_text()) > 100_000


def test_a_cold_shutdown_hands_back_what_it_had_to_kill(processes: Processes) -> None:
    start(processes, "-c", "1", "--prefetch-multiplier", "4")
    runs = send(sample_tasks.nap, 60)
    # A direct call is active before a process runs it.
    eventually(lambda: processes.noted(runs.id))
    CallQueue.objects.filter(id=runs.id).update(args=[0])
    os.kill(processes.stack.children["worker"].pid, signal.SIGQUIT)
    back = eventually(CallQueue.objects.filter(id=runs.id).exclude(state=State.ACTIVE).first)
    assert (back.attempt, back.crashes) == (1, 0)
    processes.stack.children.pop("worker").popen.wait(10)
    start(processes)
    call = ended(runs)
    assert (call.state, call.attempt, len(call.errors)) == (State.COMPLETED, 2, 1)


def test_a_soft_shutdown_ends_what_ends_in_time_and_hands_back_what_it_had_to_kill(processes: Processes) -> None:
    RateLimitKey.objects.filter(name="api").update(concurrency=2)
    start(processes, "-c", "2", env={"FLOWS_SOFT_SHUTDOWN": "3"})
    short, long = send(sample_tasks.nap, 1.5), send(sample_tasks.nap, 60)
    for call in (short, long):
        eventually(lambda call=call: processes.noted(call.id))
    CallQueue.objects.filter(id=long.id).update(args=[0])
    os.kill(processes.stack.children["worker"].pid, signal.SIGQUIT)
    assert (ended(short).state, ended(short).attempt) == (State.COMPLETED, 1)
    processes.stack.children.pop("worker").popen.wait(20)
    start(processes)
    assert (ended(long).state, ended(long).attempt) == (State.COMPLETED, 2)
    assert (processes.noted(short.id), processes.noted(long.id)) == (1, 2)


def test_a_cold_shutdown_gives_up_no_call_whose_greenlet_still_runs(processes: Processes) -> None:
    start(processes, "-P", "gevent")
    call = send(sample_tasks.outlive_a_cold_shutdown, 60, retry={"initial_interval": 60})
    back = eventually(CallQueue.objects.filter(id=call.id, state=State.RETRYABLE).first)
    processes.stack.children.pop("worker").popen.wait(20)
    assert processes.last_noted(call.id, "alive") < datetime.fromisoformat(back.error["occurred_at"])
    assert (back.attempt, processes.noted(call.id)) == (1, 1)


def test_a_cold_shutdown_leaves_a_call_to_its_thread_until_that_has_ended(processes: Processes) -> None:
    start(processes, "-P", "threads")
    call = ended(send(sample_tasks.outlive_a_cold_shutdown, 2 * LEASE.total_seconds()))
    assert (call.state, call.attempt, call.errors, processes.noted(call.id)) == (State.COMPLETED, 1, [], 1)
    processes.stack.children.pop("worker").popen.wait(20)


def test_heartbeats_go_on_while_a_cold_shutdown_waits_for_the_database(processes: Processes) -> None:
    way = Proxy(processes.stack.env["DATABASE_URL"])
    try:
        start(processes, env={"DATABASE_URL": way.url})
        child = processes.stack.children.pop("worker")
        way.cut()
        os.kill(child.pid, signal.SIGQUIT)
        child.popen.wait(30)
    finally:
        way.close()
    assert "could not send its heartbeat" in child.output()
    assert "AttributeError" not in child.output()


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_a_worker_answers_and_ends_while_the_database_does_not(processes: Processes, pool: str) -> None:
    worker = start(processes, "-P", pool, "-c", "2")
    call = send(sample_tasks.nap, 60)
    eventually(lambda: processes.noted(call.id))
    child = processes.stack.children.pop("worker")
    with holding("LOCK TABLE dispatcher_slot IN ACCESS EXCLUSIVE MODE"):
        if pool == "prefork":
            for process in psutil.Process(worker.pid).children():
                process.kill()
            eventually(lambda: "WorkerLostError" in child.output())
        assert sample_tasks.app.control.ping([worker.name], timeout=5)
        os.kill(child.pid, signal.SIGTERM if pool == "prefork" else signal.SIGQUIT)
        child.popen.wait(30)
        assert CallQueue.objects.get(id=call.id).state == State.ACTIVE
    back = eventually(CallQueue.objects.filter(id=call.id).exclude(state=State.ACTIVE).first)
    assert (back.attempt, len(back.errors)) == (1, 1)
