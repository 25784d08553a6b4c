"""Flows of workers that come, freeze, fall silent, and of every kind of pool."""

import os
import signal
from datetime import timedelta
from uuid import uuid4

import pytest

from dispatcher import api
from dispatcher.models import CallQueue, Worker
from dispatcher.states import Reason, State
from tests.flows import sample_tasks
from tests.flows.one_slot import BOTH, ended, running, send, start
from tests.flows.processes import Processes
from tests.flows.settings import DISPATCHER, QUEUE
from tests.races.audit import use_now
from tests.races.lockstep import eventually

pytestmark = BOTH

LEASE: timedelta = DISPATCHER["run_lease"]


def test_calls_wait_for_a_worker_and_go_when_one_comes(processes: Processes) -> None:
    call = send(sample_tasks.echo, "hello")
    assert call.state == State.AVAILABLE
    worker = start(processes)
    assert (worker.pool, worker.processes, worker.queues) == ("prefork", 2, [QUEUE])
    assert ended(call).state == State.COMPLETED


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_a_worker_lives_while_all_that_it_has_is_busy(processes: Processes, pool: str) -> None:
    worker = start(processes, "-P", pool)
    busy = [send(sample_tasks.block, 2 * LEASE.total_seconds(), keys=[]) for _ in range(2)]
    calls = [ended(call) for call in busy]
    assert {(call.state, call.attempt, len(call.errors)) for call in calls} == {(State.COMPLETED, 1, 0)}
    assert Worker.objects.get(id=worker.id).lost_at is None


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_a_worker_claims_the_calls_of_tasks_of_any_class(processes: Processes, pool: str) -> None:
    start(processes, "-P", pool, env={"FLOWS_PLAIN": "1"})
    first, second = send(sample_tasks.unaware, 1), send(sample_tasks.fail_and_ask, 1)
    assert [(ended(call).state, ended(call).attempt, ended(call).result) for call in (first, second)] == [
        (State.COMPLETED, 2, 2)
    ] * 2
    assert [processes.noted(call.id) for call in (first, second)] == [2, 2]


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_a_task_that_exits_ends_its_attempt(processes: Processes, pool: str) -> None:
    start(processes, "-P", pool)
    leaves, behind = send(sample_tasks.leave, retry={"max_attempts": 1}), send(sample_tasks.echo, "next")
    assert (ended(leaves).state, ended(leaves).reason) == (State.DISCARDED, Reason.FAILED)
    assert ended(behind).state == State.COMPLETED


def test_a_plain_message_with_the_headers_of_a_call_runs(processes: Processes) -> None:
    start(processes)
    for task_id in (str(uuid4()), f"invoice-{uuid4()}"):
        assert ended(send(sample_tasks.pass_headers_on, task_id)).state == State.COMPLETED
        eventually(lambda task_id=task_id: processes.noted(task_id))  # type: ignore[misc]


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_revoke_reaches_what_waits_and_what_runs_and_a_retry_is_not_discarded(
    processes: Processes, pool: str
) -> None:
    start(processes, "-P", pool, "-c", "1")
    runs = send(sample_tasks.nap, 60 if pool == "prefork" else 2)
    running(runs)
    waits = send(sample_tasks.echo, "hello")
    sample_tasks.app.control.revoke([str(waits.id), str(runs.id)], terminate=pool == "prefork")
    assert ended(waits).state == State.CANCELLED
    assert ended(runs).state == (State.CANCELLED if pool == "prefork" else State.COMPLETED)
    CallQueue.objects.filter(id=runs.id).update(args=[0])
    assert set(api.retry([waits.id, runs.id])) == {waits.id, runs.id}
    assert [eventually(CallQueue.objects.filter(id=call.id, state=State.COMPLETED).first) for call in (waits, runs)]


def test_a_call_of_a_task_that_is_new_waits_for_a_worker_that_has_it(processes: Processes, delivery: str) -> None:
    start(processes, env={"FLOWS_OLD": "1"})
    calls = [send(sample_tasks.new, keys=[], retry={"max_attempts": 1}) for _ in range(3)]
    if delivery == "broker":
        eventually(lambda: CallQueue.objects.filter(state=State.SCHEDULED, returns__gte=1).count() == 3)
    processes.start_worker("second")
    processes.stack.wait_ready()
    stored = [ended(call) for call in calls]
    assert {(call.state, call.attempt, len(call.errors)) for call in stored} == {(State.COMPLETED, 1, 0)}
    # Both workers take messages: a call that meets the old one comes to the new one soon.
    more = [send(sample_tasks.new, keys=[], retry={"max_attempts": 1}) for _ in range(6)]
    assert {(call.state, call.attempt, len(call.errors)) for call in map(ended, more)} == {(State.COMPLETED, 1, 0)}


def test_a_worker_that_is_frozen_loses_its_calls_and_changes_nothing_when_it_thaws(processes: Processes) -> None:
    worker = start(processes, "-c", "1")
    runs = send(sample_tasks.nap, 0.5 * LEASE.total_seconds())
    running(runs)
    group = os.getpgid(processes.stack.children["worker"].pid)
    os.killpg(group, signal.SIGSTOP)
    try:
        lost = eventually(CallQueue.objects.filter(id=runs.id).exclude(state=State.ACTIVE).first)
        assert [error["type"] for error in lost.errors] == ["WorkerLost"]
        assert Worker.objects.get(id=worker.id).lost_at is not None
        processes.start_worker("second", "-c", "1")
        processes.stack.wait_ready()
        call = ended(runs)
    finally:
        os.killpg(group, signal.SIGCONT)
    eventually(Worker.objects.filter(id=worker.id, lost_at=None).exists)
    eventually(lambda: processes.noted(runs.id, "end") >= 2)
    thawed = CallQueue.objects.get(id=runs.id)
    assert (thawed.state, thawed.attempt, thawed.finished_at) == (State.COMPLETED, 2, call.finished_at)
    assert use_now(["api"]) == {"api": 0}


def test_a_task_that_was_frozen_can_ask_whether_it_still_holds_its_call(processes: Processes) -> None:
    start(processes, "-c", "1")
    asks = send(sample_tasks.wait_and_ask, LEASE.total_seconds() / 3)
    running(asks)
    group = os.getpgid(processes.stack.children["worker"].pid)
    os.killpg(group, signal.SIGSTOP)
    try:
        eventually(CallQueue.objects.filter(id=asks.id).exclude(state=State.ACTIVE).first)
    finally:
        os.killpg(group, signal.SIGCONT)
    assert ended(asks).state == State.COMPLETED
    eventually(lambda: processes.noted(asks.id, "end") >= 2)
    assert processes.noted(asks.id, "asked and still holds it") == 1


def test_a_call_that_kills_its_worker_again_and_again_is_poison(processes: Processes) -> None:
    start(processes)
    call = ended(send(sample_tasks.die, 99, retry={"max_attempts": 20, "initial_interval": 0.05}))
    assert (call.state, call.reason, call.attempt, call.crashes) == (State.DISCARDED, "poison", 3, 3)
    assert list(CallQueue.objects.poison()) == [call]
    assert processes.noted(call.id) == 3
