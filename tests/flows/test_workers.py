"""Stories of workers that come and go: warm, cold, frozen, silent, and of every kind of pool."""

import os
import signal
from collections.abc import Iterator
from datetime import timedelta

import pytest

from dispatcher.models import CallQueue, RateLimitKey, Worker
from dispatcher.states import TERMINAL, State
from tests.flows import stories
from tests.flows.settings import DISPATCHER, QUEUE
from tests.flows.theatre import Theatre
from tests.races.audit import audit, use_now
from tests.races.lockstep import concurrent, eventually

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


def start(theatre: Theatre, *options: str) -> Worker:
    """Start a worker, and return what it says of itself."""
    known = set(Worker.objects.values_list("id", flat=True))
    theatre.start_worker("worker", *options)
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
