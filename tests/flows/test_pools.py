"""Flows of the processes of a worker's pool, each of which takes the calls that it runs."""

import os
import signal
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from django.db import connection

from dispatcher import sql
from dispatcher.models import CallQueue, Process, RateLimitKey, Worker
from dispatcher.request import Call
from dispatcher.states import TERMINAL, State
from tests.flows import sample_tasks
from tests.flows.one_slot import DIRECT, ended, running, send, start
from tests.flows.processes import Processes
from tests.flows.settings import QUEUE
from tests.races.lockstep import eventually, holding

pytestmark = [*DIRECT, pytest.mark.celery]

FALLBACK = {"FLOWS_FALLBACK": "1"}
ALONE = {"CELERY_BROKER_URL": "memory://", **FALLBACK}
LOCK = "SELECT 1 FROM dispatcher_callqueue WHERE id = %s FOR UPDATE"
CONNECTIONS_SINCE = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_start > %s"


def children(worker: Worker) -> list[psutil.Process]:
    return [each for each in psutil.Process(worker.pid).children() if is_alive(each)]


def is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def idle(worker: Worker, count: int) -> None:
    """Wait until so many processes of the worker wait for calls."""
    eventually(lambda: Process.objects.filter(worker_id=worker.id, idle_at__isnull=False).count() == count)


def send_many(task: object, count: int, *args: object, **options: object) -> list[CallQueue]:
    return CallQueue.objects.send_many([Call(task, args=args, queue=QUEUE, **options)] * count)  # type: ignore[arg-type]


def all_at_once(calls: list[CallQueue]) -> bool:
    """Return whether each of these ended well at its first attempt."""
    return {(ended(call).state, ended(call).attempt) for call in calls} == {(State.COMPLETED, 1)}


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_a_loop_that_fails_is_reported_and_another_one_begins(processes: Processes, pool: str) -> None:
    start(processes, "-P", pool, "-c", "2", env=ALONE)
    short = [Call(sample_tasks.echo, args=["short"], queue=QUEUE)] * 30
    calls = CallQueue.objects.send_many([*short, Call(sample_tasks.break_its_loop, queue=QUEUE), *short])
    assert all_at_once(calls), "what waited in its batch goes back"
    output = processes.stack.children["worker"].output()
    assert ("ERROR" in output, "can't start new thread" in output) == (True, True)
    # Where one process runs several, they are at once in it; with prefork each may be in another.
    count = 2 if pool in {"threads", "gevent"} else 1
    assert all_at_once(send_many(sample_tasks.wait_for_others, count, count))


def test_a_pool_shrinks_by_processes_that_run_nothing(processes: Processes) -> None:
    worker = start(processes, "-c", "3", env=FALLBACK)
    idle(worker, 3)
    control = sample_tasks.app.control
    for _ in range(2):
        assert "ok" in str(control.pool_shrink(1, destination=[worker.name], reply=True, timeout=5))
    eventually(lambda: len(children(worker)) == 1)
    busy = send(sample_tasks.echo_slowly, "slow", 2)
    eventually(lambda: processes.noted(busy.id))
    assert "busy" in str(control.pool_shrink(1, destination=[worker.name], reply=True, timeout=5))
    assert all_at_once([busy, *send_many(sample_tasks.echo, 3, "hello")])
    control.pool_grow(1, destination=[worker.name])
    idle(worker, 2)


def test_a_pool_that_scales_itself_grows_with_its_calls_and_shrinks_without(processes: Processes) -> None:
    worker = start(processes, "--autoscale", "3,1", env={"AUTOSCALE_KEEPALIVE": "1", **FALLBACK})
    calls = send_many(sample_tasks.nap, 3, 4)
    eventually(lambda: len(children(worker)) == 3)
    assert all_at_once(calls)
    eventually(lambda: len(children(worker)) == 1)
    assert all_at_once([send(sample_tasks.echo, "hello")])


@pytest.mark.parametrize("broker", ["redis", "memory"])
def test_processes_that_outlive_their_main_process_end_after_their_calls(processes: Processes, broker: str) -> None:
    worker = start(processes, env=ALONE if broker == "memory" else FALLBACK)
    idle(worker, 2)
    orphans = children(worker)
    call = send(sample_tasks.outlive_its_main_process, 1)
    assert all_at_once([call])
    eventually(lambda: not any(map(is_alive, orphans)), within=20)


@pytest.mark.parametrize("broker", ["redis", "memory"])
def test_a_signal_to_all_processes_of_a_worker_ends_it_after_its_calls(processes: Processes, broker: str) -> None:
    worker = start(processes, env=ALONE if broker == "memory" else FALLBACK)
    idle(worker, 2)
    call = send(sample_tasks.echo_slowly, "slow", 1)
    eventually(lambda: processes.noted(call.id))
    child = processes.stack.children.pop("worker")
    os.killpg(os.getpgid(child.pid), signal.SIGTERM)
    child.popen.wait(20)
    call.refresh_from_db()
    assert (call.state, call.attempt, processes.noted(call.id)) == (State.COMPLETED, 1, 1)
    assert not Process.objects.filter(worker_id=worker.id).exists()


@pytest.mark.parametrize("broker", ["redis", "memory"])
def test_processes_that_are_killed_while_they_wait_are_replaced(processes: Processes, broker: str) -> None:
    worker = start(processes, env=ALONE if broker == "memory" else FALLBACK)
    for _ in range(3):
        idle(worker, 2)
        for child in children(worker):
            child.kill()
        assert all_at_once(send_many(sample_tasks.echo, 4, "hello"))


@pytest.mark.parametrize("option", ["--max-tasks-per-child", "--max-memory-per-child"])
def test_a_process_is_replaced_when_it_has_done_its_share(processes: Processes, option: str) -> None:
    most = 3 if option == "--max-tasks-per-child" else 1
    start(processes, "-c", "1", option, str(most), env=FALLBACK)
    calls = send_many(sample_tasks.return_its_process, 9)
    assert all_at_once(calls)
    assert max(Counter(ended(call).result for call in calls).values()) == most


def test_messages_of_the_broker_count_no_less_than_calls_in_a_processs_share(processes: Processes) -> None:
    start(processes, "-c", "1", "--max-tasks-per-child", "4", env=FALLBACK)
    calls = []
    for _ in range(4):
        calls.append(send(sample_tasks.return_its_process))
        plain = sample_tasks.echo.delay("plain")
        eventually(lambda plain=plain: processes.noted(plain.id, "end"))  # type: ignore[misc]
    assert all_at_once(calls)
    assert max(Counter(ended(call).result for call in calls).values()) <= 4


@pytest.mark.parametrize(
    ("task", "errors"),
    [
        (sample_tasks.nap, ["SoftTimeLimitExceeded"]),
        (sample_tasks.ignore_a_soft_limit, ["TimeLimitExceeded"]),
    ],
)
def test_the_time_limits_of_a_worker_hold_for_calls(processes: Processes, task: object, errors: list[str]) -> None:
    start(processes, "--soft-time-limit", "1", "--time-limit", "2", env=FALLBACK)
    call, behind = send(task, 60, retry={"max_attempts": 1}), send(sample_tasks.echo, "next")
    assert [error["type"] for error in ended(call).errors] == errors
    assert all_at_once([behind])


def test_the_time_limits_of_a_call_go_before_those_of_the_worker(processes: Processes) -> None:
    start(processes, "--soft-time-limit", "30", "--time-limit", "40", env=FALLBACK)
    options = {"retry": {"max_attempts": 1}, "keys": []}
    soft = send(sample_tasks.nap.s(60).set(soft_time_limit=1), **options)
    hard = send(sample_tasks.ignore_a_soft_limit.s(60).set(time_limit=1), **options)
    errors = [[error["type"] for error in ended(call).errors] for call in (soft, hard)]
    assert errors == [["SoftTimeLimitExceeded"], ["TimeLimitExceeded"]]


def test_an_attempt_that_outstays_its_time_limit_is_over_when_its_process_is_gone(processes: Processes) -> None:
    start(processes, "-c", "1", env=FALLBACK)
    call = send(sample_tasks.go_on_until_killed.s().set(time_limit=1), retry={"max_attempts": 1})
    behind = send(sample_tasks.echo, "next")
    assert [error["type"] for error in ended(call).errors] == ["TimeLimitExceeded"]
    assert all_at_once([behind])
    assert processes.last_noted(call.id, "alive") < min(ended(call).finished_at, ended(behind).started_at)


def test_a_greenlet_that_outstays_its_time_limit_is_ended(processes: Processes) -> None:
    start(processes, "-P", "gevent", "--time-limit", "1", env=FALLBACK)
    call, behind = send(sample_tasks.nap, 60, retry={"max_attempts": 1}), send(sample_tasks.echo, "next")
    assert [error["type"] for error in ended(call).errors] == ["TimeLimitExceeded"]
    assert all_at_once([behind])


@pytest.mark.parametrize("pool", ["threads", "gevent"])
def test_a_pool_of_more_than_a_thousand_runs_calls(processes: Processes, pool: str) -> None:
    began = sql.now()
    start(processes, "-P", pool, "-c", "1100", env=ALONE)
    assert all_at_once(send_many(sample_tasks.nap, 100, 0.1))
    with connection.cursor() as cursor:
        cursor.execute(CONNECTIONS_SINCE, [began])
        (connections,) = cursor.fetchone()
    assert connections <= 5, "one for all trips, and those of the main process"


def test_all_threads_of_a_pool_run_calls_though_they_begin_at_once(processes: Processes) -> None:
    start(processes, "-P", "threads", "-c", "16", env=ALONE)
    calls = send_many(sample_tasks.wait_for_others, 16, 16)
    assert all_at_once(calls)


# Celery itself takes 2 s a message of Redis with one greenlet.
@pytest.mark.parametrize(
    ("pool", "count"),
    [("prefork", 1), ("prefork", 2), ("threads", 1), ("threads", 2), ("gevent", 2), ("solo", 1)],
)
def test_messages_and_calls_alternate_in_one_pool(processes: Processes, pool: str, count: int) -> None:
    start(processes, "-P", pool, "-c", str(count), env=FALLBACK)
    calls, plain = [], []
    for _ in range(40):
        # So long in all that the messages come meanwhile: with RabbitMQ that takes a second.
        plain.append(sample_tasks.nap.delay(0.06))
        calls.append(send(sample_tasks.nap, 0.06, keys=[]))
    assert all_at_once(calls)
    eventually(lambda: all(processes.noted(each.id, "end") for each in plain))
    starts_of_calls = sorted(processes.last_noted(call.id, "run") for call in calls)
    starts_of_messages = sorted(processes.last_noted(each.id, "run") for each in plain)
    # Not the first ones alone, which may have started before the others came.
    assert starts_of_calls[4] < starts_of_messages[-1], "calls do not wait until there are no messages"
    assert starts_of_messages[4] < starts_of_calls[-1], "messages do not wait until there are no calls"


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_receiver_that_hangs_stops_no_other_process_and_keeps_no_call(processes: Processes, pool: str) -> None:
    start(processes, "-P", pool, env={"FLOWS_RECEIVER_S": "0", **FALLBACK})
    calls = send_many(sample_tasks.nap, 10, 0.01)
    hangs = send(sample_tasks.fail, 99, keys=[], retry={"max_attempts": 1})
    calls += send_many(sample_tasks.nap, 10, 0.01)
    assert ended(hangs).state == State.DISCARDED
    assert all_at_once(calls)
    child = processes.stack.children["worker"]
    eventually(lambda: "a receiver of call_finished takes longer than" in child.output())


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_receiver_that_is_slow_keeps_its_own_process_alone(processes: Processes, pool: str) -> None:
    start(processes, "-P", pool, "-c", "4", env={"FLOWS_RECEIVER_S": "0.3", **FALLBACK})
    began = time.monotonic()
    assert all_at_once(send_many(sample_tasks.echo, 40, "hello"))
    # One after the other they take 12 s.
    assert time.monotonic() - began < 8


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_an_end_that_a_user_has_locked_waits_and_all_else_goes_on(
    processes: Processes, tmp_path: Path, pool: str
) -> None:
    start(processes, "-P", pool, env=FALLBACK)
    locked = send(sample_tasks.wait_for_a_file, str(tmp_path / "go"))
    eventually(lambda: processes.noted(locked.id))
    with holding(LOCK, [locked.id]):
        (tmp_path / "go").touch()
        eventually(lambda: processes.noted(locked.id, "end"))
        assert all_at_once(send_many(sample_tasks.echo, 40, "hello"))
        assert CallQueue.objects.get(id=locked.id).state == State.ACTIVE
    assert all_at_once([locked])
    assert processes.noted(locked.id) == 1


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_key_that_a_user_has_locked_stops_its_own_calls_alone(
    processes: Processes, tmp_path: Path, pool: str
) -> None:
    start(processes, "-P", pool, env=FALLBACK)
    first, second = send(sample_tasks.wait_for_a_file, str(tmp_path / "go")), send(sample_tasks.echo, "second")
    eventually(lambda: processes.noted(first.id))
    with holding("SELECT FROM dispatcher_ratelimitkey WHERE name = 'api' FOR UPDATE"):
        (tmp_path / "go").touch()
        assert all_at_once([first, *send_many(sample_tasks.echo, 40, "hello")])
        assert CallQueue.objects.get(id=second.id).state == State.AVAILABLE
    assert all_at_once([second])


@pytest.mark.parametrize(("how", "times"), [(signal.SIGKILL, 20), (signal.SIGTERM, 1)], ids=["SIGKILL", "SIGTERM"])
def test_a_process_that_ends_before_its_calls_end_is_recorded_runs_none_twice(
    processes: Processes, tmp_path: Path, how: signal.Signals, times: int
) -> None:
    worker = start(processes, "-c", "1", env=FALLBACK)
    calls = []
    for number in range(times):
        file = tmp_path / str(number)
        call = send(sample_tasks.wait_for_a_file, str(file))
        eventually(lambda call=call: processes.noted(call.id))  # type: ignore[misc]
        with holding(LOCK, [call.id]):
            file.touch()
            eventually(lambda call=call: processes.noted(call.id, "end"))  # type: ignore[misc]
            (process,) = children(worker)
            process.send_signal(how)
            process.wait(20)
        calls.append(ended(call))
    assert all_at_once(calls)
    assert [processes.noted(call.id) for call in calls] == [1] * times


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_what_a_task_leaves_of_its_connection_harms_no_other_call(processes: Processes, pool: str) -> None:
    start(processes, "-P", pool, "-c", "1", env=FALLBACK)
    for how in ("in a broken transaction", "without autocommit", "without tables", "read-only", "closed"):
        assert ended(send(sample_tasks.leave_its_connection, how, keys=[])).state in TERMINAL
        assert all_at_once([send(sample_tasks.echo, "next", keys=[])])


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_a_task_sees_no_session_settings_but_those_of_django(processes: Processes, pool: str) -> None:
    start(processes, "-P", pool, "-c", "1", env=FALLBACK)
    calls = send_many(sample_tasks.return_its_settings, 40)
    calls += [send(sample_tasks.return_its_settings, keys=[]) for _ in range(3)]
    assert all_at_once(calls)
    assert {name for call in calls for name in ended(call).result} <= {"DateStyle", "TimeZone", "client_encoding"}


@pytest.mark.parametrize(
    ("pool", "how"),
    [(pool, how) for pool in ("prefork", "threads", "gevent", "solo") for how in ("cancelled", "exit")]
    + [("gevent", "timeout")],
)
def test_a_task_that_raises_no_exception_ends_its_attempt_at_once(processes: Processes, pool: str, how: str) -> None:
    worker = start(processes, "-P", pool, "-c", "1", env={"FLOWS_HEARTBEAT": "30", **FALLBACK})
    idle(worker, 1)
    odd, behind = send(sample_tasks.end_oddly, how, retry={"max_attempts": 1}), send(sample_tasks.echo, "next")
    # Its lease takes 150 s.
    assert ended(odd).state == State.DISCARDED
    assert all_at_once([behind])


def test_a_running_call_is_lost_alone_when_its_process_is_killed(processes: Processes) -> None:
    RateLimitKey.objects.filter(name="api").update(concurrency=2)
    start(processes, "-c", "2", env=FALLBACK)
    stays = running(send(sample_tasks.nap, 8))
    lost = send(sample_tasks.die, 1)
    assert (ended(lost).attempt, [error["type"] for error in ended(lost).errors]) == (2, ["WorkerLostError"])
    assert CallQueue.objects.get(id=stays.id).state == State.ACTIVE, "it came back at once"
    assert all_at_once([stays])
