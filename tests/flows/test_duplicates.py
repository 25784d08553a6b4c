"""Flows of messages that are delivered to a second worker while the first one runs the call."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dispatcher.messages.tickets import TICKET_HEADER
from dispatcher.models import CallQueue, RateLimitKey, Slot, Worker
from dispatcher.states import TERMINAL, State
from tests.flows import sample_tasks
from tests.flows.processes import Processes
from tests.flows.settings import QUEUE
from tests.races.audit import audit
from tests.races.lockstep import concurrent, eventually

pytestmark = [concurrent, pytest.mark.usefixtures("ticking"), pytest.mark.broker, pytest.mark.slow]

SECOND_QUEUE = f"{QUEUE}-second"


@pytest.fixture(autouse=True)
def _two_workers(processes: Processes) -> Iterator[None]:
    """Have two workers, of a queue each, which run one task at a time and fetch four more."""
    kill_workers(processes)
    RateLimitKey.objects.declare("api", concurrency=1)
    processes.start_worker("worker", "-c", "1")
    processes.start_worker("second", "-c", "1", "--prefetch-multiplier", "4", "-Q", SECOND_QUEUE)
    processes.stack.wait_ready()
    eventually(Worker.objects.filter(queues=[QUEUE]).exists)
    eventually(Worker.objects.filter(queues=[SECOND_QUEUE]).exists)
    yield
    kill_workers(processes)
    audit()


def kill_workers(processes: Processes) -> None:
    processes.kill_workers()
    Worker.objects.all().delete()


def second() -> Worker:
    return Worker.objects.get(queues=[SECOND_QUEUE])


def running(processes: Processes, end: Path) -> CallQueue:
    """Send a call that takes until this file is there, and wait until the first worker runs it."""
    call = CallQueue.objects.send(sample_tasks.wait_for_a_file, args=[str(end)], keys=["api"], queue=QUEUE)
    eventually(lambda: processes.noted(call.id))
    return CallQueue.objects.get(id=call.id)


def deliver_again(call: CallQueue, **options: object) -> None:
    """Publish the call's message to the second worker as well."""
    headers = {TICKET_HEADER: str(call.ticket)}
    sample_tasks.app.send_task(
        call.task, args=call.args, task_id=str(call.id), headers=headers, queue=SECOND_QUEUE, **options
    )


def fetched_by_the_second(processes: Processes, call: CallQueue) -> None:
    """Deliver the message to the second worker while it is busy, and wait for two of its heartbeats."""
    busy = sample_tasks.app.send_task("tests.flows.sample_tasks.nap", args=[60], queue=SECOND_QUEUE)
    eventually(lambda: processes.noted(busy.id))
    deliver_again(call)
    inspect = sample_tasks.app.control.inspect()
    eventually(lambda: str(call.id) in str((inspect.reserved() or {}).get(second().name)))
    for _ in range(2):
        seen_at = second().seen_at
        eventually(lambda seen_at=seen_at: second().seen_at > seen_at)  # type: ignore[misc]


def runs_to_its_end(processes: Processes, call: CallQueue, end: Path) -> None:
    """Let it end: the first worker's only run is what counts, and nothing ran beside it."""
    assert CallQueue.objects.get(id=call.id).state == State.ACTIVE
    behind = CallQueue.objects.send(sample_tasks.echo, args=["next"], keys=["api"], queue=QUEUE)
    assert behind.state == State.AVAILABLE
    end.touch()
    ended = eventually(CallQueue.objects.filter(id=call.id, state__in=TERMINAL).first)
    assert (ended.state, ended.attempt, ended.errors) == (State.COMPLETED, 1, [])
    assert processes.noted(call.id) == 1
    eventually(CallQueue.objects.filter(id=behind.id, state=State.COMPLETED).exists)
    assert not Slot.objects.exists()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGQUIT, signal.SIGKILL], ids=lambda how: how.name)
def test_a_worker_that_fetched_a_duplicate_ends_nothing_when_it_ends(
    processes: Processes, tmp_path: Path, how: signal.Signals
) -> None:
    call = running(processes, tmp_path / "end")
    fetched_by_the_second(processes, call)
    first = Worker.objects.get(queues=[QUEUE])
    assert set(Slot.objects.values_list("worker_id", flat=True)) == {first.id}
    ending = second()
    os.kill(processes.stack.children["second"].pid, how)
    if how is signal.SIGTERM:
        eventually(Worker.objects.filter(id=ending.id, stopped_at__isnull=False).exists)
        # It would wait for what it runs.
        for child in psutil.Process(ending.pid).children():
            child.kill()
    if how is signal.SIGKILL:
        eventually(Worker.objects.filter(id=ending.id, lost_at__isnull=False).exists)
    else:
        processes.stack.children.pop("second").popen.wait(20)
    runs_to_its_end(processes, call, tmp_path / "end")
