"""Flows of direct delivery: one worker process takes calls from PostgreSQL and needs no broker, beat or dispenser."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from threading import Thread

import psutil
import pytest
from django.db import connection

from dispatcher import api
from dispatcher.lifecycle.periodic_runs import TICK
from dispatcher.models import CallQueue, PeriodicRun, Process, Queue, RateLimitKey, Worker
from dispatcher.request import Call
from dispatcher.states import State
from tests import db_admin
from tests.flows import sample_tasks
from tests.flows.one_slot import DIRECT, ended, running, send, start
from tests.flows.processes import Processes
from tests.flows.settings import QUEUE
from tests.races.audit import most_in_any_window, spent_by_key, too_close
from tests.races.lockstep import eventually, holding
from trials.chaos.proxy import Proxy

pytestmark = DIRECT

AT_ONCE = timedelta(milliseconds=5)
ALONE = {"CELERY_BROKER_URL": "memory://", "FLOWS_FALLBACK": "1"}


@pytest.fixture
def worker(processes: Processes) -> Iterator[Worker]:
    yield start(processes, env={"FLOWS_FALLBACK": "1"})
    processes.kill_workers()


@pytest.mark.parametrize("pool", [pytest.param("prefork", marks=pytest.mark.smoke), "threads", "gevent", "solo"])
def test_one_worker_process_without_a_broker_runs_everything(processes: Processes, pool: str) -> None:
    start(processes, "-P", pool, env=ALONE)
    plain, behind = send(sample_tasks.echo, "one"), send(sample_tasks.echo, "two")
    retried = send(sample_tasks.fail, 1, keys=[])
    assert [ended(call).result for call in (plain, behind, retried)] == ["one", "two", 2]
    assert processes.noted(retried.id) == 2
    assert PeriodicRun.objects.filter(ran_by__isnull=False).exists()


def test_a_worker_that_is_to_stop_starts_no_more_calls(processes: Processes) -> None:
    start(processes, "-c", "1", env=ALONE)
    calls = CallQueue.objects.send_many([Call(sample_tasks.echo_slowly, args=["x", 0.2], queue=QUEUE)] * 20)
    ended(calls[0])
    worker = processes.stack.children.pop("worker")
    os.kill(worker.pid, signal.SIGTERM)
    now = datetime.now(UTC)
    worker.popen.wait(20)
    latest = CallQueue.objects.filter(started_at__isnull=False).latest("started_at").started_at
    assert latest - now < timedelta(seconds=0.5), "Celery needs seconds to stop where it has no event loop"
    assert CallQueue.objects.filter(state=State.AVAILABLE).exists()


def test_an_idle_worker_starts_a_call_without_a_poll(processes: Processes, worker: Worker) -> None:
    spans = []
    for _ in range(5):
        eventually(Process.objects.filter(worker_id=worker.id, idle_at__isnull=False).first)
        call = ended(send(sample_tasks.echo, "hello", keys=[]))
        spans.append((call.started_at - call.created_at).total_seconds())
    assert min(spans) < 0.15, "a notification, and not the look of every 0.3 s"


@pytest.mark.parametrize("processes_of_pool", [1, 2])
def test_a_worker_whose_processes_are_all_busy_starts_the_next_call_as_it_records_an_end(
    processes: Processes, processes_of_pool: int
) -> None:
    RateLimitKey.objects.declare("full", concurrency=processes_of_pool)
    start(processes, "-c", str(processes_of_pool))
    slow = Call(sample_tasks.echo_slowly, args=["hello", 0.03], queue=QUEUE, keys=["full"])
    calls = [ended(call) for call in CallQueue.objects.send_many([slow] * 16)]
    starts = sorted(call.started_at for call in calls)
    after = [min((at for at in starts if at >= call.finished_at), default=None) for call in calls]
    # One trip records the end and starts the next call.
    at_once = [at for call, at in zip(calls, after, strict=True) if at and at - call.finished_at < AT_ONCE]
    assert len(at_once) >= 8


BLOCKED_BY = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"


def test_room_that_was_given_back_before_the_connection_broke_is_used(processes: Processes, tmp_path: Path) -> None:
    worker = start(processes)
    # One step of an idle worker starts the first call and parks the lane of the following one.
    eventually(Process.objects.filter(worker_id=worker.id, idle_at__isnull=False).first)
    tasks = (sample_tasks.wait_for_a_file, sample_tasks.echo)
    calls = [Call(task, args=[str(tmp_path / "go")], queue=QUEUE, keys=["api"]) for task in tasks]
    first, following = CallQueue.objects.send_many(calls)
    eventually(lambda: processes.noted(first.id))
    # The next start is counted, and waits for the table's lock again and again. Where the connection breaks, the end
    # may be recorded or not.
    api.limit("api", {"concurrency": 1, "rate": {"limit": 100, "period": "PT1S"}})
    with holding("LOCK TABLE dispatcher_start IN SHARE MODE") as gate:
        (tmp_path / "go").touch()
        eventually(lambda: db_admin.monitor().execute(BLOCKED_BY, [gate.info.backend_pid]).fetchone() != (0,))
    assert [(ended(call).state, ended(call).attempt) for call in (first, following)] == [(State.COMPLETED, 1)] * 2


SELDOM = {"FLOWS_HEARTBEAT": "5"}
"""Workers that look by themselves so seldom that the tests are over before."""


@pytest.fixture
def two_workers(processes: Processes) -> Iterator[None]:
    for name in ("worker", "second"):
        processes.start_worker(name, "-c", "1", env=SELDOM)
    processes.stack.wait_ready()
    eventually(lambda: Process.objects.filter(idle_at__isnull=False).count() == 2)
    yield
    processes.kill_workers()


def test_a_call_that_one_worker_has_no_room_for_starts_on_an_idle_one(processes: Processes, two_workers: None) -> None:
    busy = running(send(sample_tasks.nap, 3, keys=[]))
    call = ended(send(sample_tasks.echo, "hello", keys=[]))
    assert (call.started_at - call.created_at).total_seconds() < 1
    assert CallQueue.objects.get(id=busy.id).state == State.ACTIVE


def test_a_window_that_opens_for_a_busy_worker_is_used_by_an_idle_one(processes: Processes, two_workers: None) -> None:
    RateLimitKey.objects.declare("window", rate=(1, "PT1S"))
    busy = running(send(sample_tasks.nap, 4, keys=["window"]))
    call = ended(send(sample_tasks.echo, "hello", keys=["window"]))
    with connection.cursor() as cursor:
        cursor.execute("SELECT max(total) FROM dispatcher_start")
        (starts,) = cursor.fetchone()
    # A process of a busy machine may come too late for its start, which counts for a second all the same.
    assert (call.started_at - busy.started_at).total_seconds() < starts
    assert CallQueue.objects.get(id=busy.id).state == State.ACTIVE


def test_a_worker_whose_mark_is_locked_starts_calls_all_the_same(processes: Processes, worker: Worker) -> None:
    eventually(Process.objects.filter(worker_id=worker.id, idle_at__isnull=False).exists)
    with holding("SELECT FROM dispatcher_process FOR UPDATE"):
        assert [ended(send(sample_tasks.echo, word)).state for word in ("one", "two")] == [State.COMPLETED] * 2


def test_a_scheduled_call_starts_though_a_user_keeps_the_rows_of_periodic_tasks_locked(
    processes: Processes, worker: Worker
) -> None:
    eventually(PeriodicRun.objects.filter(name=TICK).exists)
    with holding("SELECT FROM dispatcher_periodicrun FOR UPDATE"):
        call = send(sample_tasks.echo, "hello", scheduled_at=datetime.now(UTC) + timedelta(seconds=1))
        assert ended(call).state == State.COMPLETED


def test_a_worker_notices_that_its_queue_is_direct_or_not_any_more(processes: Processes, worker: Worker) -> None:
    assert ended(send(sample_tasks.echo, "direct")).published_at is not None
    Queue.objects.filter(name=QUEUE).update(delivery="broker")
    assert ended(send(sample_tasks.echo, "broker")).state == State.COMPLETED
    Queue.objects.filter(name=QUEUE).update(delivery="direct")
    assert ended(send(sample_tasks.echo, "direct")).state == State.COMPLETED


def test_a_worker_without_a_direct_queue_keeps_no_connection_for_its_loops(
    processes: Processes, worker: Worker
) -> None:
    def connections() -> int:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                "AND query ~ '^/. (take|mark_process|delete_process) '"
            )
            return int(cursor.fetchone()[0])

    mine = Process.objects.filter(worker_id=worker.id)
    eventually(lambda: mine.filter(idle_at__isnull=False).count() == worker.processes == connections())
    Queue.objects.filter(name=QUEUE).update(delivery="broker")
    eventually(lambda: not mine.exists() and not connections())
    Queue.objects.filter(name=QUEUE).update(delivery="direct")
    eventually(mine.filter(idle_at__isnull=False).exists)


def test_queues_are_served_by_their_weights_and_by_new_ones_at_once(processes: Processes) -> None:
    seldom = f"{QUEUE}-seldom"
    Queue.objects.filter(name=QUEUE).update(weight=3)
    Queue.objects.create(name=seldom, delivery="direct")

    def send_slow(queue: str, count: int) -> list[CallQueue]:
        # So slow that none is started ahead.
        call = Call(sample_tasks.echo_slowly, args=["hello", 0.015], queue=queue)
        return CallQueue.objects.send_many([call] * count)

    def started(queue: str) -> list[datetime]:
        return sorted(CallQueue.objects.filter(queue=queue, attempt=1).values_list("started_at", flat=True))

    first, others = send_slow(QUEUE, 60), send_slow(seldom, 120)
    start(processes, "-c", "1", "-Q", f"{QUEUE},{seldom}", env=ALONE)
    ended(first[-1])
    last = started(QUEUE)[-1]
    assert len([at for at in started(seldom) if at < last]) in {19, 20}
    Queue.objects.filter(name=QUEUE).update(weight=1)
    Queue.objects.filter(name=seldom).update(weight=3)
    send_slow(QUEUE, 100)
    ended(others[-1])
    begun, *_, done = started(seldom)[-31:]
    assert len([at for at in started(QUEUE) if begun < at < done]) in {9, 10, 11}


def test_in_strict_order_queues_are_served_as_the_worker_names_them(processes: Processes) -> None:
    later = f"{QUEUE}-a"  # before it by name
    Queue.objects.create(name=later, delivery="direct")
    call = Call(sample_tasks.echo_slowly, args=["hello", 0.015])
    others, first = (CallQueue.objects.send_many([replace(call, queue=queue)] * 20) for queue in (later, QUEUE))
    start(processes, "-c", "1", "-Q", f"{QUEUE},{later}", env={**ALONE, "FLOWS_QUEUE_ORDER": "strict"})
    # One trip may start the last of these with the first of the others.
    assert max(ended(each).started_at for each in first) <= min(ended(each).started_at for each in others)


def test_calls_that_were_started_ahead_of_a_long_one_go_back(processes: Processes) -> None:
    start(processes, "-c", "1", env={"FLOWS_FALLBACK": "1"})

    def send_many(*calls: Call) -> list[CallQueue]:
        return CallQueue.objects.send_many([replace(call, queue=QUEUE) for call in calls])

    short = [Call(sample_tasks.echo, args=["short"])] * 20
    for _ in range(3):
        assert {ended(call).result for call in send_many(*short)} == {"short"}
    long, *others = send_many(Call(sample_tasks.nap, args=[4]), *short)
    running(long)
    active = CallQueue.objects.filter(state=State.ACTIVE)
    eventually(lambda: list(active.values_list("id", flat=True)) == [long.id])
    assert {(ended(call).state, ended(call).attempt) for call in (long, *others)} == {(State.COMPLETED, 1)}


def test_a_running_call_is_terminated_as_any_request_of_celery_is(processes: Processes, worker: Worker) -> None:
    call = send(sample_tasks.nap, 60)
    running(call)
    eventually(lambda: str(call.id) in str(sample_tasks.app.control.inspect([worker.name]).active()))
    sample_tasks.app.control.revoke(str(call.id), terminate=True, destination=[worker.name])
    assert ended(call).state == State.CANCELLED
    eventually(lambda: processes.noted(call.id, "terminated") == 1)
    assert ended(send(sample_tasks.echo, "next")).state == State.COMPLETED


def test_calls_that_are_terminated_as_they_start_are_ended(processes: Processes) -> None:
    worker = start(processes, "-c", "4", env=SELDOM)
    eventually(lambda: Process.objects.filter(worker_id=worker.id, idle_at__isnull=False).count() == 4)
    calls = []
    for _ in range(24):
        calls.append(send(sample_tasks.nap, 600, keys=[]))
        sample_tasks.app.control.revoke(str(calls[-1].id), terminate=True)
    assert {ended(call).state for call in calls} == {State.CANCELLED}
    assert ended(send(sample_tasks.echo, "next")).state == State.COMPLETED


def test_a_revoke_that_waits_for_a_locked_row_keeps_no_other_work_of_its_worker(
    processes: Processes, worker: Worker
) -> None:
    later = send(sample_tasks.echo, "later", scheduled_at=datetime.now(UTC) + timedelta(hours=1))
    with holding("SELECT FROM dispatcher_callqueue WHERE id = %s FOR UPDATE", [later.id]):
        sample_tasks.app.control.revoke(str(later.id), destination=[worker.name], reply=True, timeout=5)
        died = ended(send(sample_tasks.die, 1))
        assert (died.state, died.attempt) == (State.COMPLETED, 2)
    assert ended(later).state == State.CANCELLED


def test_a_running_call_is_terminated_in_its_greenlet(processes: Processes) -> None:
    worker = start(processes, "-P", "gevent", env={"FLOWS_FALLBACK": "1"})
    call = running(send(sample_tasks.nap, 60))
    sample_tasks.app.control.revoke(str(call.id), terminate=True, destination=[worker.name])
    assert ended(call).state == State.CANCELLED
    assert [error["type"] for error in ended(call).errors] == ["Terminated"]
    assert ended(send(sample_tasks.echo, "next")).state == State.COMPLETED


def test_a_running_call_in_a_thread_is_not_terminated_and_the_answer_says_so(processes: Processes) -> None:
    worker = start(processes, "-P", "threads", env={"FLOWS_FALLBACK": "1"})
    call = running(send(sample_tasks.nap, 2))
    (answer,) = sample_tasks.app.control.revoke(
        str(call.id), terminate=True, destination=[worker.name], reply=True, timeout=5
    )
    assert "a pool of thread can't terminate call" in answer[worker.name]["error"]
    assert ended(call).state == State.COMPLETED


@pytest.mark.smoke
def test_a_main_process_that_is_killed_loses_one_attempt_of_what_it_ran(processes: Processes, worker: Worker) -> None:
    call = send(sample_tasks.nap, 60)
    running(call)
    CallQueue.objects.filter(id=call.id).update(args=[0])
    processes.stack.kill("worker")
    start(processes, env={"FLOWS_FALLBACK": "1"})
    back = ended(call)
    assert (back.state, back.attempt, len(back.errors)) == (State.COMPLETED, 2, 1)


@pytest.mark.smoke
def test_a_worker_whose_connections_are_cut_goes_on_and_loses_nothing(processes: Processes, worker: Worker) -> None:
    calls = [send(sample_tasks.nap, 0.05, keys=[]) for _ in range(40)]
    for _ in range(5):
        # No state to wait for: the cuts are to come at any moment of a turn.
        time.sleep(0.15)
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
    assert {ended(call).state for call in calls} == {State.COMPLETED}
    assert {ended(call).attempt for call in calls} == {1}
    assert {processes.noted(call.id) for call in calls} == {1}


@pytest.mark.smoke
def test_a_worker_uses_a_window_and_a_throttle_to_the_full_without_a_tick(processes: Processes) -> None:
    start(processes)
    window = RateLimitKey.objects.declare("window", rate=(10, "PT1S"))
    throttle = RateLimitKey.objects.declare("throttle", throttle=(20, "PT1S"))

    def starts(key: RateLimitKey, count: int) -> list[datetime]:
        call = Call(sample_tasks.echo, args=["hello"], keys=[key.name], queue=QUEUE)
        calls = [ended(each) for each in CallQueue.objects.send_many([call] * count)]
        assert {each.attempt for each in calls} == {1}
        return sorted(each.started_at for each in calls)

    first, *_, last = starts(window, 30)
    assert most_in_any_window(spent_by_key()[window.id], timedelta(seconds=1)) == 10
    assert last - first < timedelta(seconds=3), "an idle process looks by itself each second"
    first, *_, last = starts(throttle, 40)
    assert too_close(spent_by_key()[throttle.id], timedelta(seconds=0.05)) == []
    # A step more for each start that a busy machine missed.
    assert last - first < 2 * 39 * timedelta(seconds=0.05)
    assert not PeriodicRun.objects.exists()


@pytest.mark.parametrize("other", ["direct", "broker"])
def test_queues_with_a_worker_each_take_turns_on_a_key(processes: Processes, other: str) -> None:
    beside = f"{QUEUE}-beside"
    Queue.objects.create(name=beside, delivery=other)
    for name, queue in (("worker", QUEUE), ("second", beside)):
        processes.start_worker(name, "-c", "1", "-Q", queue, env={"FLOWS_FALLBACK": "1"})
    processes.stack.wait_ready()
    for queue in (QUEUE, beside):
        ended(CallQueue.objects.send(sample_tasks.echo, args=["warm"], queue=queue))
    api.pause("api")
    nap = Call(sample_tasks.nap, args=[0.02], keys=["api"])
    calls = [
        call for queue in (QUEUE, beside) for call in CallQueue.objects.send_many([replace(nap, queue=queue)] * 20)
    ]
    api.resume("api")
    order = [call.queue for call in sorted(map(ended, calls), key=attrgetter("started_at"))]
    repeats = [pair for pair in pairwise(order) if pair[0] == pair[1]]
    assert len(repeats) <= 2, "a busy machine may wake a worker too late for its turn"


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_no_worker_runs_more_of_a_key_than_one_worker_may(processes: Processes, pool: str) -> None:
    for name in ("worker", "second", "third"):
        processes.start_worker(name, "-P", pool, "-c", "4", env={"FLOWS_FALLBACK": "1"})
    processes.stack.wait_ready()
    eventually(lambda: Process.objects.filter(idle_at__isnull=False).values("worker_id").distinct().count() == 3)
    RateLimitKey.objects.declare("exports", concurrency=5, per_worker=2)
    nap = Call(sample_tasks.nap, args=[0.1], keys=["exports"], queue=QUEUE)
    calls = CallQueue.objects.send_many([nap] * 40)
    assert {(ended(call).state, ended(call).attempt) for call in calls} == {(State.COMPLETED, 1)}
    most = processes.most_at_once([call.id for call in calls])
    assert most.pop(None) == 5
    assert (len(most), max(most.values())) == (3, 2)


def test_a_frozen_worker_keeps_no_call_from_another(processes: Processes, worker: Worker) -> None:
    os.kill(processes.stack.children["worker"].pid, signal.SIGSTOP)
    try:
        processes.start_worker("second", env={"FLOWS_FALLBACK": "1"})
        processes.stack.wait_ready()
        assert ended(send(sample_tasks.echo, "hello")).state == State.COMPLETED
    finally:
        os.kill(processes.stack.children["worker"].pid, signal.SIGCONT)
        processes.stack.kill("second")


def test_a_provider_that_says_stop_stops_what_its_process_has_taken_ahead(processes: Processes, tmp_path: Path) -> None:
    start(processes, "-c", "1", env=ALONE)
    RateLimitKey.objects.declare("wide", concurrency=100)
    for call in [send(sample_tasks.echo, "short", keys=["wide"]) for _ in range(40)]:
        ended(call)
    api.pause("wide")
    first = send(sample_tasks.be_rate_limited, str(tmp_path / "stopped"), keys=["wide"])
    behind = [send(sample_tasks.echo, "behind", keys=["wide"]) for _ in range(12)]
    began = datetime.now(UTC)
    api.resume("wide")
    assert ended(first).result == "done"
    assert {ended(call).attempt for call in behind} == {1}
    assert min(processes.last_noted(call.id, "run") for call in behind) >= began + timedelta(seconds=1)


FRESH_WORKERS = int(os.environ.get("FLOWS_FRESH_WORKERS", "5"))
"""How many workers lose an idle process one after the other."""


def test_a_fresh_worker_without_a_broker_that_loses_an_idle_process_does_all_calls(processes: Processes) -> None:
    took = []
    for _ in range(FRESH_WORKERS):
        worker = start(processes, env=ALONE)
        idle, *_ = psutil.Process(processes.stack.children["worker"].pid).children()
        eventually(Process.objects.filter(worker_id=worker.id, idle_at__isnull=False).exists)
        idle.kill()
        began = time.monotonic()
        calls = [send(sample_tasks.echo, word, keys=[]) for word in ("one", "two", "three", "four")]
        assert {ended(call).state for call in calls} == {State.COMPLETED}
        took.append(time.monotonic() - began)
        processes.kill_workers()
    assert max(took) < 1.0, f"all calls done after {took} s"


def test_an_end_that_a_worker_could_not_record_before_its_loops_left_is_recorded_later(
    processes: Processes, tmp_path: Path
) -> None:
    way = Proxy(processes.stack.env["DATABASE_URL"])
    try:
        worker = start(processes, env={"DATABASE_URL": way.url})
        call = send(sample_tasks.wait_for_a_file, str(tmp_path / "file"))
        eventually(lambda: processes.noted(call.id))
        # The answers of its idle process are lost, too, so that it looks for calls that no process has.
        way.cut()
        (tmp_path / "file").touch()
        eventually(lambda: processes.noted(call.id, "end"))
        child = processes.stack.children.pop("worker")
        os.kill(child.pid, signal.SIGTERM)
        eventually(lambda: not psutil.Process(worker.pid).children())
        way.restore()
        child.popen.wait(20)
    finally:
        way.close()
    call.refresh_from_db()
    assert (call.state, call.result, call.attempt) == (State.COMPLETED, "there", 1)


@pytest.mark.parametrize("runs_s", [0.0, 4.0], ids=["idle", "busy"])
def test_sigterm_to_the_group_of_a_worker_without_a_broker_stops_it_after_its_calls(
    processes: Processes, runs_s: float
) -> None:
    worker = start(processes, env=ALONE)
    eventually(Process.objects.filter(worker_id=worker.id, idle_at__isnull=False).exists)
    call = running(send(sample_tasks.echo_slowly, "x", runs_s)) if runs_s else None
    main = psutil.Process(processes.stack.children.pop("worker").pid)
    began = time.monotonic()
    os.killpg(os.getpgid(main.pid), signal.SIGTERM)
    main.wait(30)
    took = time.monotonic() - began
    if call is None:
        assert took < 3.0
    else:
        call.refresh_from_db()
        assert (call.state, call.attempt) == (State.COMPLETED, 1)
        assert took < runs_s + 3.0


def test_an_end_that_the_database_refuses_fails_its_attempt_and_stops_no_other_call(
    processes: Processes, worker: Worker
) -> None:
    refused = send(sample_tasks.be_rate_limited_by_a_strange_key, keys=[], retry={"max_attempts": 1})
    assert ended(refused).state == State.DISCARDED
    assert ended(send(sample_tasks.echo, "next", keys=[])).state == State.COMPLETED


@contextmanager
def monitored(processes: Processes, *options: str) -> Iterator[tuple[Worker, Callable[[CallQueue], list[str]]]]:
    """Watch the events of a worker; give a function that returns the kinds of those of a call."""
    seen: list[tuple[str, str]] = []
    with sample_tasks.app.connection_for_read() as connected:
        monitor = sample_tasks.app.events.Receiver(
            connected, handlers={"*": lambda event: seen.append((event["type"], event.get("uuid", "")))}
        )
        thread = Thread(target=monitor.capture, kwargs={"wakeup": False})
        thread.start()
        try:
            worker = start(processes, *options, env={"FLOWS_FALLBACK": "1"})
            eventually(lambda: seen)
            yield worker, lambda call: [kind for kind, uuid in seen if uuid == str(call.id)]
        finally:
            monitor.should_stop = True
            thread.join()


@pytest.mark.smoke
def test_monitors_see_what_loops_run(processes: Processes) -> None:
    with monitored(processes, "-E") as (worker, kinds_of):
        once = {"retry": {"max_attempts": 1}}
        ends = {
            send(sample_tasks.echo, "hello"): "succeeded",
            send(sample_tasks.fail, 99, **once): "failed",
            send(sample_tasks.die, 99, **once): "failed",
            send(sample_tasks.outstay, 99, **once): "failed",
            send(sample_tasks.leave, **once): "failed",
        }
        for call, end in ends.items():
            eventually(lambda call=call: len(kinds_of(call)) == 3)
            assert kinds_of(call) == ["task-received", "task-started", f"task-{end}"]
        again = send(sample_tasks.die, 1)
        kinds = ("received", "started", "retried", "received", "started", "succeeded")
        eventually(lambda: kinds_of(again) == [f"task-{kind}" for kind in kinds])
        ended_by_hand = running(send(sample_tasks.nap, 60, **once))
        sample_tasks.app.control.revoke(str(ended_by_hand.id), terminate=True, destination=[worker.name])
        eventually(lambda: kinds_of(ended_by_hand) == ["task-received", "task-started", "task-revoked"])


def test_time_limits_hold_while_a_broker_that_gets_events_does_not_answer(processes: Processes) -> None:
    way = Proxy(processes.stack.env["CELERY_BROKER_URL"])
    try:
        worker = start(processes, "-E", env={"CELERY_BROKER_URL": way.url, "FLOWS_FALLBACK": "1"})
        eventually(Process.objects.filter(worker_id=worker.id, idle_at__isnull=False).exists)
        way.silence()
        # More than Celery keeps until it sends them.
        calls = CallQueue.objects.send_many([Call(sample_tasks.echo, args=["hello"], queue=QUEUE)] * 60)
        assert {ended(call).state for call in calls} == {State.COMPLETED}
        late = send(sample_tasks.outstay, 99, retry={"max_attempts": 1})
        assert [error["type"] for error in ended(late).errors] == ["TimeLimitExceeded"]
    finally:
        processes.kill_workers()
        way.close()


def test_loops_write_events_only_while_a_monitor_wants_them(processes: Processes) -> None:
    def are_written() -> bool:
        return bool(ended(send(sample_tasks.return_whether_its_events_are_written)).result)

    control = sample_tasks.app.control
    with monitored(processes) as (worker, kinds_of):
        assert not are_written()
        control.enable_events([worker.name], reply=True, timeout=5)
        eventually(are_written)
        call = send(sample_tasks.echo, "hello")
        eventually(lambda: kinds_of(call) == ["task-received", "task-started", "task-succeeded"])
        control.disable_events([worker.name], reply=True, timeout=5)
        eventually(lambda: not are_written())


def test_a_worker_whose_transport_is_its_memory_swallows_no_call_of_the_broker(processes: Processes) -> None:
    Queue.objects.filter(name=QUEUE).update(delivery="broker")
    beside = f"{QUEUE}-beside"
    Queue.objects.create(name=beside, delivery="direct")
    start(processes, "-Q", f"{QUEUE},{beside}", env=ALONE)
    own = running(CallQueue.objects.send(sample_tasks.nap, args=[1], queue=beside, keys=["api"]))
    calls = [
        send(sample_tasks.echo, "later", keys=[], scheduled_at=datetime.now(UTC) + timedelta(seconds=0.5))
        for _ in range(10)
    ]
    # Its call of the direct queue ends, and leaves them the room of a key.
    calls += [send(sample_tasks.echo, "behind") for _ in range(2)]
    assert ended(own).state == State.COMPLETED
    mine = CallQueue.objects.filter(id__in=[call.id for call in calls])
    eventually(lambda: mine.filter(state=State.AVAILABLE).count() == 12)
    eventually(lambda: PeriodicRun.objects.filter(ran_by__isnull=False).exists())
    assert mine.filter(state=State.AVAILABLE, published_at=None).count() == 12
    processes.start_worker("second")
    processes.stack.wait_ready()
    assert {(ended(call).state, processes.noted(call.id)) for call in calls} == {(State.COMPLETED, 1)}


def test_a_worker_whose_transport_is_its_memory_runs_no_tick_where_another_reaches_the_broker(
    processes: Processes,
) -> None:
    alone = start(processes, env=ALONE)
    tick = PeriodicRun.objects.filter(name=TICK)
    eventually(tick.filter(ran_by=alone.id).exists)
    Queue.objects.filter(name=QUEUE).update(delivery="broker")
    processes.start_worker("second", env={"FLOWS_FALLBACK": "1"})
    processes.stack.wait_ready()
    second = eventually(Worker.objects.exclude(id=alone.id).filter(queues__contains=[QUEUE]).first)
    # One that has no direct queue looks with its heartbeats.
    eventually(tick.filter(ran_by=second.id).exists)
    for _ in range(3):
        soon = datetime.now(UTC) + timedelta(seconds=0.5)
        call = ended(send(sample_tasks.echo, "later", scheduled_at=soon))
        assert call.started_at - soon < timedelta(seconds=2)
        assert tick.get().ran_by == second.id


def test_scheduled_calls_start_within_two_seconds_after_the_worker_dies_that_ticked(processes: Processes) -> None:
    workers = {start(processes, env={"FLOWS_FALLBACK": "1"}).id: "worker"}
    processes.start_worker("second", env={"FLOWS_FALLBACK": "1"})
    processes.stack.wait_ready()
    other = eventually(Worker.objects.exclude(id__in=workers).filter(queues__contains=[QUEUE]).first)
    workers[other.id] = "second"
    eventually(Process.objects.filter(worker_id=other.id, idle_at__isnull=False).exists)
    elected = eventually(PeriodicRun.objects.filter(name=TICK, ran_by__in=workers).first)
    processes.stack.kill(workers[elected.ran_by])
    soon = datetime.now(UTC) + timedelta(seconds=0.2)
    call = ended(send(sample_tasks.echo, "later", keys=[], scheduled_at=soon))
    assert call.started_at - soon < timedelta(seconds=2.2)


def test_ticks_go_on_while_a_call_keeps_the_only_thread_of_a_solo_worker(processes: Processes) -> None:
    start(processes, "-P", "solo", env=ALONE)
    long = running(send(sample_tasks.block, 6, keys=[]))
    soon = datetime.now(UTC) + timedelta(seconds=0.5)
    later = send(sample_tasks.echo, "later", keys=[], scheduled_at=soon)
    eventually(CallQueue.objects.filter(id=later.id, state=State.AVAILABLE).exists)
    assert CallQueue.objects.get(id=long.id).state == State.ACTIVE
    assert {(ended(call).state, ended(call).attempt) for call in (later, long)} == {(State.COMPLETED, 1)}


def test_a_queue_that_a_worker_is_to_consume_is_served_at_once(processes: Processes) -> None:
    worker = start(processes, env=SELDOM)
    eventually(Process.objects.filter(worker_id=worker.id, idle_at__isnull=False).exists)
    other = f"{QUEUE}-other"
    Queue.objects.create(name=other, delivery="direct")
    sample_tasks.app.control.add_consumer(other, destination=[worker.name], reply=True)
    call = ended(CallQueue.objects.send(sample_tasks.echo, args=["hello"], queue=other))
    assert (call.started_at - call.created_at).total_seconds() < 2.5, "the worker looks by itself every five seconds"
