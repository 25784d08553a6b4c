"""The whole cast, each with its own idea of the time: two workers, two dispensers and beat.

What needs the settings is imported in the fixtures: when this file is read, the servers are not up yet.
"""

# ruff: noqa: PLC0415

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from tests.flows.clocks.faketime import HOUR, clock_of, off

if TYPE_CHECKING:
    from tests.flows.processes import Processes

WORKERS = {"ahead": (HOUR, "prefork"), "behind": (-HOUR, "threads")}
FALLBACK = {"FLOWS_FALLBACK": "1"}


@pytest.fixture
def cast(processes: "Processes", sending: None) -> Iterator[Callable[..., "Processes"]]:
    """Have all up once it is called with how far off the dispenser's and beat's clocks are; none is right.

    As by default, workers tick by themselves where no message asks for it: a beat whose clock is behind sends none for
    as long as entries are newer than its own time.
    Each worker takes the calls of a queue of its own beside those of the common ones, of which one is direct.
    """
    from django_celery_beat.models import PeriodicTask

    from dispatcher.celery import schedule
    from dispatcher.models import Queue
    from tests.flows.sample_tasks import app
    from tests.flows.settings import DISPENSER_QUEUE, QUEUE

    def enter(*, dispenser: timedelta, beat: timedelta) -> "Processes":
        schedule.schedule()
        Queue.objects.create(name=f"{QUEUE}-direct", delivery="direct")
        PeriodicTask.objects.filter(task__startswith="dispatcher.").update(queue=DISPENSER_QUEUE)
        for name, (hours, pool) in WORKERS.items():
            processes.start_worker(
                name, "-P", pool, "-Q", f"{QUEUE},{QUEUE}-{name},{QUEUE}-direct", env=off(hours) | FALLBACK
            )
        processes.start_dispenser(env=off(dispenser) | FALLBACK)
        processes.start_beat(env=off(beat))
        processes.stack.wait_ready()
        clocks = {name: clock_of(child) for name, child in processes.stack.children.items()}
        assert clocks == {"ahead": HOUR, "behind": -HOUR, "dispenser": dispenser, "beat": beat}
        return processes

    yield enter
    for name in list(processes.stack.children):
        processes.stack.kill(name)
    with app.connection_for_write() as broker:
        for name in (*WORKERS, "direct"):
            app.amqp.queues[f"{QUEUE}-{name}"](broker.default_channel).delete()
