"""Limited tasks beside the same tasks as Celery runs them in the same worker: results, signals and requests."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, Task, states
from celery.result import AsyncResult

from dispatcher.models import CallQueue
from project.services import Services
from tests.flows import sample_tasks
from tests.flows.one_slot import ended, start
from tests.flows.processes import Processes
from tests.flows.settings import QUEUE
from tests.races.lockstep import concurrent, eventually

pytestmark = [concurrent, pytest.mark.usefixtures("ticking", "one_slot"), pytest.mark.slow]
by_both = pytest.mark.parametrize("delivery", ["direct", "broker"], indirect=True)
directly = pytest.mark.parametrize("delivery", ["direct"], indirect=True)
IN_MAIN = {sample_tasks.die.name, sample_tasks.outstay.name}
"""The tasks whose process is gone, so that the main process sends the signal."""


@pytest.fixture
def result_of(
    processes: Processes, services: Services, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[[Any], AsyncResult]]:
    """Have a worker up that stores results, also that a task has started."""
    backend = services.broker_url if services.broker_url.startswith("redis") else f"file://{tmp_path}"
    pool = getattr(request, "param", "prefork")
    start(processes, "-P", pool, env={"CELERY_RESULT_BACKEND": backend, "FLOWS_FALLBACK": "1", "FLOWS_TRACKED": "1"})
    app = Celery("results", backend=backend, set_as_current=False)
    yield lambda sent: app.AsyncResult(str(sent.id))
    processes.kill_workers()


def sent_in_both_ways(task: Task, *args: Any, **options: Any) -> list[AsyncResult | CallQueue]:
    """Send a task to Celery, and as a call, which `.delay()` of a limited task is."""
    call = task.s(*args).set(queue=QUEUE, **options)
    as_call = CallQueue.objects.send(call, retry={"decided_by": "task", "max_attempts": 1})
    return [call.apply_async(), as_call]


@by_both
def test_what_fails_ends_as_with_celery(processes: Processes, result_of: Callable[[Any], AsyncResult]) -> None:
    def end_of(sent: Any, task: Task) -> set[str]:
        eventually(lambda: result_of(sent).state in states.READY_STATES)
        eventually(lambda: failures(sent))
        return {
            # Where Celery's process ends, that of a loop goes on.
            failure.replace("TaskExited", "WorkerLostError") if task is sample_tasks.leave else failure
            for failure in {result_of(sent).state, *failures(sent, is_main=task.name in IN_MAIN)}
        }

    def failures(sent: Any, *, is_main: bool = False) -> set[str]:
        lines = [line for line in processes.lines_of(sent.id) if line["what"].startswith("failed")]
        return {line["what"] for line in lines if not is_main or line["worker"] == "MainProcess"}

    tasks = [(sample_tasks.fail, 99), (sample_tasks.die, 99), (sample_tasks.outstay, 99)]
    for task, *args in [*tasks, (sample_tasks.leave,), (sample_tasks.reject,)]:
        plain, call = sent_in_both_ways(task, *args)
        assert end_of(call, task) == end_of(plain, task), task.name
        assert ended(call).state == "discarded"


@by_both
def test_what_is_cut_off_and_tried_again_is_a_retry_as_with_celery(
    processes: Processes, result_of: Callable[[Any], AsyncResult]
) -> None:
    def reports_of(sent: Any, error: str) -> set[tuple[str, int, str]]:
        eventually(lambda: result_of(sent).state == states.RETRY)
        assert type(result_of(sent).result).__name__ == error
        assert result_of(sent).get(timeout=20) in {"alive", "in time"}
        lines = [line for line in processes.lines_of(sent.id) if line["what"].startswith(("failed", "retried"))]
        return {(line["what"], line["retries"], line["worker"]) for line in lines}

    def as_call(task: Task) -> CallQueue:
        retry = {"max_attempts": 2, "initial_interval": 2, "jitter": False}
        return CallQueue.objects.send(task.s(1).set(queue=QUEUE), retry=retry)

    plain = sample_tasks.die_and_be_retried.s(1).set(queue=QUEUE).apply_async()
    as_celery = reports_of(plain, "WorkerLostError")
    assert as_celery == {("retried: WorkerLostError", 0, "MainProcess")}
    assert reports_of(as_call(sample_tasks.die_and_be_retried), "WorkerLostError") == as_celery
    # Celery itself does not try such a task again.
    late = as_call(sample_tasks.outstay)
    assert reports_of(late, "TimeLimitExceeded") == {("retried: TimeLimitExceeded", 0, "MainProcess")}


@directly
@pytest.mark.parametrize("result_of", ["prefork", "gevent"], indirect=True)
def test_what_is_terminated_cleans_up_and_is_revoked(
    processes: Processes, result_of: Callable[[Any], AsyncResult]
) -> None:
    for sent in sent_in_both_ways(sample_tasks.clean_up, 60, time_limit=60):
        eventually(lambda sent=sent: processes.noted(sent.id))
        sample_tasks.app.control.revoke(str(sent.id), terminate=True)
        eventually(lambda sent=sent: result_of(sent).state == states.REVOKED)
        assert str(result_of(sent).result) == "terminated"
        eventually(lambda sent=sent: processes.noted(sent.id, "terminated") == 1)
        eventually(lambda sent=sent: processes.noted(sent.id, "cleaned up") == 1)


@directly
def test_a_hard_time_limit_lets_a_task_clean_up_and_holds_after_a_signal_that_it_outlives(
    processes: Processes, result_of: Callable[[Any], AsyncResult]
) -> None:
    for sent in sent_in_both_ways(sample_tasks.clean_up, 60):
        eventually(lambda sent=sent: processes.noted(sent.id))
        sample_tasks.app.control.revoke(str(sent.id), terminate=True, signal="SIGINT")
        eventually(lambda sent=sent: processes.noted(sent.id, "cleaned up") == 1)
    assert ended(sent).error["type"] == "TimeLimitExceeded"


@by_both
def test_a_task_sees_when_it_was_to_start_and_when_it_expires(
    processes: Processes, result_of: Callable[[Any], AsyncResult]
) -> None:
    later = datetime.now(UTC) + timedelta(seconds=60)
    for options in ({}, {"countdown": 1}, {"expires": 60}, {"eta": datetime.now(UTC), "expires": later}):
        both = sent_in_both_ways(sample_tasks.return_its_times, **options)
        plain, call = (result_of(sent).get(timeout=20) for sent in both)
        for as_celery, seen in zip(plain, call, strict=True):
            assert (seen is None) == (as_celery is None)
            if seen is not None:
                apart = datetime.fromisoformat(seen) - datetime.fromisoformat(as_celery)
                assert abs(apart) < timedelta(seconds=5)
