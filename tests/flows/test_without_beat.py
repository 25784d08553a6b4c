"""Flows without beat's rows: workers tick by themselves, plain beat ticks, and neither makes any noise."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from django.utils import timezone
from django_celery_beat.models import PeriodicTask

from dispatcher import engine
from dispatcher.lifecycle.claim import claim
from dispatcher.lifecycle.periodic_runs import CLEANUP, RECOVER, TICK
from dispatcher.models import CallQueue, Lane, LaneSite, PeriodicRun, Slot, Worker
from dispatcher.states import State
from tests.apps import APPS
from tests.flows import sample_tasks
from tests.flows.processes import Processes
from tests.flows.settings import DISPENSER_QUEUE, ELSEWHERE, QUEUE
from tests.races.audit import audit
from tests.races.lockstep import eventually

pytestmark = [
    pytest.mark.django_db(transaction=True, available_apps=[*APPS, "django_celery_beat"]),
    pytest.mark.usefixtures("sending"),
    pytest.mark.broker,
    pytest.mark.slow,
]

BY_ITSELF = {"FLOWS_FALLBACK": "1"}
SETTINGS_PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "settings.md"


@pytest.fixture(autouse=True)
def _no_other_workers(processes: Processes) -> Iterator[None]:
    """Begin without workers, and without any of beat's rows, as a project has it that deletes them at each deploy."""
    end(processes)
    PeriodicTask.objects.all().delete()
    PeriodicRun.objects.all().delete()
    yield
    end(processes)
    audit(has_ended=False)


def end(processes: Processes) -> None:
    for name in {"worker", "second", "dispenser", "beat"}.intersection(processes.stack.children):
        processes.stack.kill(name)


def lost_call() -> CallQueue:
    """Return a call that a worker started which died without a word: its lease is over."""
    call = CallQueue.objects.send(sample_tasks.echo, args=["lost"], queue=ELSEWHERE)
    call.refresh_from_db()
    claim(call.id, call.ticket)
    CallQueue.objects.filter(id=call.id).update(queue=QUEUE)
    Lane.objects.filter(id=call.lane_id).update(queue=QUEUE)
    LaneSite.objects.filter(lane_id=call.lane_id).update(queue=QUEUE)
    Slot.objects.filter(call=call).update(lease_until=timezone.now())
    return call


def is_done(call: CallQueue) -> Callable[[], bool]:
    return CallQueue.objects.filter(id=call.id, state=State.COMPLETED).exists


def test_a_dispenser_ticks_and_recovers_by_itself_where_there_is_no_beat(processes: Processes) -> None:
    processes.start_worker()
    processes.start_dispenser(env=BY_ITSELF)
    processes.stack.wait_ready()
    lost = lost_call()
    soon = timezone.now() + timedelta(seconds=1)
    scheduled = CallQueue.objects.send(sample_tasks.echo, args=["later"], queue=QUEUE, scheduled_at=soon)
    eventually(is_done(scheduled))
    eventually(is_done(lost))
    ran = PeriodicRun.objects.get(name=TICK)
    dispenser = Worker.objects.get(queues=[DISPENSER_QUEUE])
    assert ran.ran_by == dispenser.id
    assert not PeriodicTask.objects.exists()


def test_a_worker_of_other_queues_ticks_by_itself_where_there_is_no_dispenser(processes: Processes) -> None:
    processes.start_worker(env=BY_ITSELF)
    processes.stack.wait_ready()
    soon = timezone.now() + timedelta(seconds=1)
    scheduled = CallQueue.objects.send(sample_tasks.echo, args=["later"], queue=QUEUE, scheduled_at=soon)
    eventually(is_done(scheduled))
    worker = Worker.objects.get(queues=[QUEUE])
    assert PeriodicRun.objects.get(name=TICK).ran_by == worker.id
    # Once it ticks, it does so every second.
    again = CallQueue.objects.send(
        sample_tasks.echo, args=["again"], queue=QUEUE, scheduled_at=timezone.now() + timedelta(seconds=2)
    )
    done = eventually(CallQueue.objects.filter(id=again.id, state=State.COMPLETED).first)
    assert done.started_at - done.scheduled_at < timedelta(seconds=5)


def documented_schedule() -> dict[str, Any]:
    """Return the schedule that the documentation has for beat without django-celery-beat, with this run's queue."""
    (text,) = re.findall(r"```python\n(CELERY_BEAT_SCHEDULE = .+?)```", SETTINGS_PAGE.read_text(), re.DOTALL)
    found: dict[str, Any] = {}
    exec(text, found)  # noqa: S102 -- it is our own page
    schedule = found["CELERY_BEAT_SCHEDULE"]
    for entry in schedule.values():
        entry["options"] = {"queue": DISPENSER_QUEUE}
        entry["schedule"] = min(entry["schedule"], 1.0)
    return schedule


def test_plain_entries_of_beat_drive_the_dispenser(processes: Processes, tmp_path: Path) -> None:
    processes.start_worker()
    processes.start_dispenser()
    schedule = documented_schedule()
    assert {entry["task"] for entry in schedule.values()} == {TICK, RECOVER, CLEANUP}
    processes.start_beat("-s", str(tmp_path / "schedule"), env={"FLOWS_BEAT_SCHEDULE": json.dumps(schedule)})
    processes.stack.wait_ready()
    old = CallQueue.objects.send(sample_tasks.echo, args=["old"], queue=ELSEWHERE)
    old.refresh_from_db()
    engine.execute(old.id, old.ticket, lambda: None)
    CallQueue.objects.filter(id=old.id).update(finished_at=timezone.now() - timedelta(hours=2))
    lost = lost_call()
    soon = timezone.now() + timedelta(seconds=1)
    scheduled = CallQueue.objects.send(sample_tasks.echo, args=["later"], queue=QUEUE, scheduled_at=soon)
    eventually(is_done(scheduled))
    eventually(is_done(lost))
    eventually(lambda: not CallQueue.objects.filter(id=old.id).exists())
    assert set(PeriodicRun.objects.values_list("name", "ran_by")) == {(TICK, None), (RECOVER, None), (CLEANUP, None)}
    beat = processes.stack.children["beat"].output()
    assert "Sending due task" not in beat


@contextmanager
def events() -> Iterator[list[dict[str, Any]]]:
    """Collect the events that workers and beat send about tasks."""
    found: list[dict[str, Any]] = []
    with sample_tasks.app.connection_for_read() as connection:
        receiver = sample_tasks.app.events.Receiver(connection, handlers={"*": found.append})
        thread = Thread(target=partial(receiver.capture, limit=None, timeout=None))
        thread.start()
        try:
            eventually(lambda: any(event["type"].startswith("worker-") for event in found))
            yield found
        finally:
            receiver.should_stop = True
            thread.join()


def test_ticks_send_no_events_and_write_no_lines(processes: Processes, tmp_path: Path) -> None:
    # With long leases no worker counts as lost on a busy machine, which would be logged.
    loud = {"FLOWS_EVENTS": "1", "FLOWS_HEARTBEAT": "5"}
    schedule = {
        name: {"task": name, "schedule": 0.2, "options": {"queue": DISPENSER_QUEUE}} for name in (TICK, RECOVER)
    }
    processes.start_worker(env=loud)
    processes.start_dispenser("dispenser", env=loud)
    processes.stack.wait_ready()
    with events() as found:
        processes.start_beat("-s", str(tmp_path / "s"), env={**loud, "FLOWS_BEAT_SCHEDULE": json.dumps(schedule)})
        processes.stack.wait_ready()
        eventually(lambda: PeriodicRun.objects.filter(name__in=[TICK, RECOVER]).count() == 2)
        # A run is written down every 3 seconds: 15 ticks.
        before = PeriodicRun.objects.get(name=TICK).ran_at
        eventually(lambda: PeriodicRun.objects.get(name=TICK).ran_at > before)
        _, is_ready, since = processes.stack.children["dispenser"].output().partition(" ready.\n")
        assert is_ready
        assert not since
        call = CallQueue.objects.send(sample_tasks.echo, args=["hello"], queue=QUEUE)
        eventually(is_done(call))
        # What is not of the dispenser is logged as ever.
        eventually(lambda: [event for event in found if event["type"] == "task-succeeded"])
    assert not [event for event in found if str(event.get("name")).startswith("dispatcher.")]
    assert "dispatcher." not in processes.stack.children["beat"].output()
