"""Stories of workers that come and go: warm, cold, frozen, silent, and of every kind of pool."""

import os
import signal
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from uuid import uuid4

import psutil
import pytest

from dispatcher import engine
from dispatcher.models import CallQueue, RateLimitKey, Worker
from dispatcher.states import TERMINAL, Reason, State
from tests.flows import stories
from tests.flows.settings import DISPATCHER, QUEUE
from tests.flows.theatre import Theatre
from tests.races.audit import audit, use_now
from tests.races.lockstep import concurrent, eventually, holding

pytestmark = [concurrent, pytest.mark.usefixtures("ticking")]

LEASE: timedelta = DISPATCHER["run_lease"]


@pytest.fixture(autouse=True)
def _one_at_a_time(theatre: Theatre) -> Iterator[None]:
    kill_workers(theatre)
    RateLimitKey.objects.declare("api", concurrency=1)
    yield
    kill_workers(theatre)
    audit(has_ended=False)


def kill_workers(theatre: Theatre) -> None:
    for name in {"worker", "second"}.intersection(theatre.stack.children):
        theatre.stack.kill(name)


def start(theatre: Theatre, *options: str, env: Mapping[str, str] | None = None) -> Worker:
    """Start a worker, and return what it says of itself."""
    known = set(Worker.objects.values_list("id", flat=True))
    theatre.start_worker("worker", *options, env=env)
    theatre.stack.wait_ready()
    return eventually(Worker.objects.exclude(id__in=known).filter(queues__contains=[QUEUE]).first)


def send(task: object, *args: object, **options: object) -> CallQueue:
    return CallQueue.objects.send(task, args=args, **{"keys": ["api"], "queue": QUEUE, **options})


def running(call: CallQueue) -> CallQueue:
    return eventually(CallQueue.objects.filter(id=call.id, state=State.ACTIVE).first)


def ended(call: CallQueue) -> CallQueue:
    return eventually(CallQueue.objects.filter(id=call.id, state__in=TERMINAL).first)


def test_calls_wait_for_a_worker_and_go_when_one_comes(theatre: Theatre) -> None:
    call = send(stories.echo, "hello")
    assert call.state == State.AVAILABLE
    worker = start(theatre)
    assert (worker.pool, worker.processes, worker.queues) == ("prefork", 2, [QUEUE])
    assert ended(call).state == State.COMPLETED


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_a_worker_lives_while_all_that_it_has_is_busy(theatre: Theatre, pool: str) -> None:
    worker = start(theatre, "-P", pool)
    busy = [send(stories.block, 2 * LEASE.total_seconds(), keys=[]) for _ in range(2)]
    calls = [ended(call) for call in busy]
    assert {(call.state, call.attempt, len(call.errors)) for call in calls} == {(State.COMPLETED, 1, 0)}
    assert Worker.objects.get(id=worker.id).lost_at is None


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_a_worker_claims_the_calls_of_tasks_of_any_class(theatre: Theatre, pool: str) -> None:
    start(theatre, "-P", pool, env={"FLOWS_PLAIN": "1"})
    first, second = send(stories.unaware, 1), send(stories.fail_and_ask, 1)
    assert [(ended(call).state, ended(call).attempt, ended(call).result) for call in (first, second)] == [
        (State.COMPLETED, 2, 2)
    ] * 2
    assert [theatre.noted(call.id) for call in (first, second)] == [2, 2]


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_a_task_that_exits_ends_its_attempt(theatre: Theatre, pool: str) -> None:
    start(theatre, "-P", pool)
    leaves, behind = send(stories.leave, retry={"max_attempts": 1}), send(stories.echo, "next")
    assert (ended(leaves).state, ended(leaves).reason) == (State.DISCARDED, Reason.FAILED)
    assert ended(behind).state == State.COMPLETED


def test_a_plain_message_with_the_headers_of_a_call_runs(theatre: Theatre) -> None:
    start(theatre)
    for task_id in (str(uuid4()), f"invoice-{uuid4()}"):
        assert ended(send(stories.pass_headers_on, task_id)).state == State.COMPLETED
        eventually(lambda task_id=task_id: theatre.noted(task_id))  # type: ignore[misc]


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_revoke_reaches_what_waits_and_what_runs_and_a_retry_is_not_discarded(theatre: Theatre, pool: str) -> None:
    start(theatre, "-P", pool, "-c", "1")
    runs = send(stories.nap, 60 if pool == "prefork" else 2)
    running(runs)
    waits = send(stories.echo, "hello")
    stories.app.control.revoke([str(waits.id), str(runs.id)], terminate=pool == "prefork")
    assert ended(waits).state == State.CANCELLED
    assert ended(runs).state == (State.CANCELLED if pool == "prefork" else State.COMPLETED)
    CallQueue.objects.filter(id=runs.id).update(args=[0])
    assert set(engine.retry([waits.id, runs.id])) == {waits.id, runs.id}
    assert [eventually(CallQueue.objects.filter(id=call.id, state=State.COMPLETED).first) for call in (waits, runs)]


def test_a_call_of_a_task_that_is_new_waits_for_a_worker_that_has_it(theatre: Theatre) -> None:
    start(theatre, env={"FLOWS_OLD": "1"})
    calls = [send(stories.new, keys=[], retry={"max_attempts": 1}) for _ in range(3)]
    eventually(lambda: CallQueue.objects.filter(state=State.SCHEDULED, returns__gte=1).count() == 3)
    theatre.start_worker("second")
    theatre.stack.wait_ready()
    stored = [ended(call) for call in calls]
    assert {(call.state, call.attempt, len(call.errors)) for call in stored} == {(State.COMPLETED, 1, 0)}
    # Both workers take messages: a call that meets the old one comes to the new one soon.
    more = [send(stories.new, keys=[], retry={"max_attempts": 1}) for _ in range(6)]
    assert {(call.state, call.attempt, len(call.errors)) for call in map(ended, more)} == {(State.COMPLETED, 1, 0)}


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_a_warm_shutdown_ends_what_runs_and_hands_back_the_rest_at_once(theatre: Theatre, pool: str) -> None:
    worker = start(theatre, "-P", pool, "-c", "1", "--prefetch-multiplier", "4")
    runs = send(stories.nap, 1.5 * LEASE.total_seconds())
    running(runs)
    fetched = [send(stories.echo, "next", keys=[]) for _ in range(2)]
    os.kill(theatre.stack.children["worker"].pid, signal.SIGTERM)
    stopped = eventually(Worker.objects.filter(id=worker.id, stopped_at__isnull=False).first)
    assert stopped.seen_at - stopped.started_at < timedelta(seconds=10)
    call = ended(runs)
    assert (call.state, call.attempt, call.errors) == (State.COMPLETED, 1, [])
    theatre.stack.children.pop("worker").popen.wait(10)
    start(theatre)
    assert [(ended(call).state, ended(call).attempt) for call in fetched] == [(State.COMPLETED, 1)] * 2
    assert theatre.noted(runs.id) == 1


def test_a_cold_shutdown_hands_back_what_it_had_to_kill(theatre: Theatre) -> None:
    start(theatre, "-c", "1", "--prefetch-multiplier", "4")
    runs = send(stories.nap, 60)
    running(runs)
    CallQueue.objects.filter(id=runs.id).update(args=[0])
    os.kill(theatre.stack.children["worker"].pid, signal.SIGQUIT)
    back = eventually(CallQueue.objects.filter(id=runs.id).exclude(state=State.ACTIVE).first)
    assert (back.attempt, back.crashes) == (1, 0)
    theatre.stack.children.pop("worker").popen.wait(10)
    start(theatre)
    call = ended(runs)
    assert (call.state, call.attempt, len(call.errors)) == (State.COMPLETED, 2, 1)


def test_a_cold_shutdown_gives_up_no_call_whose_greenlet_still_runs(theatre: Theatre) -> None:
    start(theatre, "-P", "gevent")
    call = send(stories.outlive_a_cold_shutdown, 60, retry={"initial_interval": 60})
    back = eventually(CallQueue.objects.filter(id=call.id, state=State.RETRYABLE).first)
    theatre.stack.children.pop("worker").popen.wait(20)
    assert theatre.last_noted(call.id, "alive") < datetime.fromisoformat(back.error["occurred_at"])
    assert (back.attempt, theatre.noted(call.id)) == (1, 1)


def test_a_cold_shutdown_leaves_a_call_to_its_thread_until_that_has_ended(theatre: Theatre) -> None:
    start(theatre, "-P", "threads")
    call = ended(send(stories.outlive_a_cold_shutdown, 2 * LEASE.total_seconds()))
    assert (call.state, call.attempt, call.errors, theatre.noted(call.id)) == (State.COMPLETED, 1, [], 1)
    theatre.stack.children.pop("worker").popen.wait(20)


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_a_worker_answers_and_ends_while_the_database_does_not(theatre: Theatre, pool: str) -> None:
    worker = start(theatre, "-P", pool, "-c", "2")
    call = send(stories.nap, 60)
    running(call)
    child = theatre.stack.children.pop("worker")
    with holding("LOCK TABLE dispatcher_slot IN ACCESS EXCLUSIVE MODE"):
        if pool == "prefork":
            for process in psutil.Process(worker.pid).children():
                process.kill()
            eventually(lambda: "WorkerLostError" in child.output())
        assert stories.app.control.ping([worker.name], timeout=5)
        os.kill(child.pid, signal.SIGTERM if pool == "prefork" else signal.SIGQUIT)
        child.popen.wait(30)
        assert CallQueue.objects.get(id=call.id).state == State.ACTIVE
    back = eventually(CallQueue.objects.filter(id=call.id).exclude(state=State.ACTIVE).first)
    assert (back.attempt, len(back.errors)) == (1, 1)


def test_a_worker_that_is_frozen_loses_its_calls_and_changes_nothing_when_it_thaws(theatre: Theatre) -> None:
    worker = start(theatre, "-c", "1")
    runs = send(stories.nap, 0.5 * LEASE.total_seconds())
    running(runs)
    group = os.getpgid(theatre.stack.children["worker"].pid)
    os.killpg(group, signal.SIGSTOP)
    try:
        lost = eventually(CallQueue.objects.filter(id=runs.id).exclude(state=State.ACTIVE).first)
        assert [error["type"] for error in lost.errors] == ["WorkerLost"]
        assert Worker.objects.get(id=worker.id).lost_at is not None
        theatre.start_worker("second", "-c", "1")
        theatre.stack.wait_ready()
        call = ended(runs)
    finally:
        os.killpg(group, signal.SIGCONT)
    eventually(Worker.objects.filter(id=worker.id, lost_at=None).exists)
    eventually(lambda: theatre.noted(runs.id, "end") >= 2)
    thawed = CallQueue.objects.get(id=runs.id)
    assert (thawed.state, thawed.attempt, thawed.finished_at) == (State.COMPLETED, 2, call.finished_at)
    assert use_now(["api"]) == {"api": 0}


def test_a_task_that_was_frozen_can_ask_whether_it_still_holds_its_call(theatre: Theatre) -> None:
    start(theatre, "-c", "1")
    asks = send(stories.wait_and_ask, LEASE.total_seconds() / 3)
    running(asks)
    group = os.getpgid(theatre.stack.children["worker"].pid)
    os.killpg(group, signal.SIGSTOP)
    try:
        eventually(CallQueue.objects.filter(id=asks.id).exclude(state=State.ACTIVE).first)
    finally:
        os.killpg(group, signal.SIGCONT)
    assert ended(asks).state == State.COMPLETED
    eventually(lambda: theatre.noted(asks.id, "end") >= 2)
    assert theatre.noted(asks.id, "asked and still holds it") == 1


def test_a_call_that_kills_its_worker_again_and_again_is_poison(theatre: Theatre) -> None:
    start(theatre)
    call = ended(send(stories.die, 99, retry={"max_attempts": 20, "initial_interval": 0.05}))
    assert (call.state, call.reason, call.attempt, call.crashes) == (State.DISCARDED, "poison", 3, 3)
    assert list(CallQueue.objects.poison()) == [call]
    assert theatre.noted(call.id) == 3
