"""Flows of limits in a real worker: what it starts, when, and how many at once."""

from datetime import timedelta

import pytest

from dispatcher import engine
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.request import Call
from dispatcher.states import State
from tests.flows import sample_tasks
from tests.flows.processes import Processes, all_ended, every
from tests.flows.settings import QUEUE
from tests.races.audit import audit, most_at_once, most_in_any_window, spent_by_key, too_close
from tests.races.lockstep import concurrent, eventually

pytestmark = [concurrent, pytest.mark.usefixtures("sending"), pytest.mark.broker, pytest.mark.pooler, pytest.mark.slow]


def send(count: int, key: str, task: object = sample_tasks.echo, argument: object = "hello") -> None:
    CallQueue.objects.send_many([Call(task=task, args=[argument], keys=[key], queue=QUEUE)] * count)


def test_with_beat_stopped_a_backlog_behind_one_slot_drains_to_the_last_call(worker: Processes) -> None:
    key = RateLimitKey.objects.declare("books", concurrency=1)
    send(40, "books")
    eventually(all_ended)
    assert most_at_once(spent_by_key()[key.id]) == 1
    audit(is_fifo=True)


def test_with_beat_stopped_failing_and_dying_tasks_hand_their_room_on_as_well(worker: Processes) -> None:
    RateLimitKey.objects.declare("books", concurrency=1)
    send(2, "books", sample_tasks.fail, 99)
    send(1, "books", sample_tasks.die, 99)
    send(2, "books")
    eventually(lambda: CallQueue.objects.filter(state=State.COMPLETED).count() == 2)
    assert (
        list(CallQueue.objects.exclude(state=State.COMPLETED).values_list("state", "attempt")) == [("retryable", 1)] * 3
    )
    audit(has_ended=False)


def test_with_beat_stopped_one_dying_task_after_the_other_hands_its_room_on(worker: Processes) -> None:
    # The worker's main process publishes for those that died; a process that is forked meanwhile has its sockets, too.
    RateLimitKey.objects.declare("books", concurrency=1)
    send(3, "books", sample_tasks.die, 99)
    send(1, "books")
    eventually(lambda: CallQueue.objects.filter(state=State.COMPLETED).exists())
    audit(has_ended=False)


def test_a_throttle_is_driven_evenly_by_a_tick_a_second(worker: Processes) -> None:
    key = RateLimitKey.objects.declare("api", throttle=(20, 1))
    with every(1.0, engine.tick):
        send(40, "api")
        eventually(all_ended)
    starts = sorted(CallQueue.objects.values_list("started_at", flat=True))
    assert too_close(spent_by_key()[key.id], timedelta(seconds=0.05)) == []
    # 39 steps of 50 ms, and a step more for each start that a busy machine missed.
    assert starts[-1] - starts[0] < 2 * 39 * timedelta(seconds=0.05)
    audit()  # A busy machine may miss a start; that call comes after those that are dispatched.


@pytest.mark.smoke
def test_a_window_is_used_to_the_full_and_never_beyond(worker: Processes) -> None:
    key = RateLimitKey.objects.declare("relay", rate=(10, 1))
    with every(1.0, engine.tick):
        send(30, "relay")
        eventually(all_ended)
    starts = sorted(CallQueue.objects.values_list("started_at", flat=True))
    assert most_in_any_window(spent_by_key()[key.id], timedelta(seconds=1)) == 10
    assert starts[-1] - starts[0] < timedelta(seconds=4)
    audit()
