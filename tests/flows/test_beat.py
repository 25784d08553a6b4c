"""The flow of beat: its entries drive the dispenser, which serves what time brings, recovers, and cleans up."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.utils import timezone
from django_celery_beat.models import IntervalSchedule, PeriodicTask

from dispatcher import api, engine
from dispatcher.celery import schedule
from dispatcher.lifecycle.claim import claim
from dispatcher.models import CallQueue, Lane, LaneSite, RateLimitKey, Slot
from dispatcher.request import Call
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


@pytest.fixture
def beat(worker: Processes) -> Iterator[None]:
    """Have beat and the dispenser up, by entries that come every second."""
    schedule.schedule()
    often, _ = IntervalSchedule.objects.get_or_create(every=1, period=IntervalSchedule.SECONDS)
    PeriodicTask.objects.filter(task__startswith="dispatcher.").update(
        interval=often, crontab=None, queue=DISPENSER_QUEUE
    )
    worker.start_dispenser()
    worker.start_beat()
    yield
    worker.stack.kill("beat")
    worker.stack.kill("dispenser")


@pytest.mark.smoke
def test_beat_and_the_dispenser_serve_what_time_brings_recover_the_lost_and_clean_up(beat: None) -> None:
    old, fresh, lost = (CallQueue.objects.send(sample_tasks.echo, args=["hello"], queue=ELSEWHERE) for _ in range(3))
    for call in (old, fresh, lost):
        call.refresh_from_db()
    for call in (old, fresh):
        engine.execute(call.id, call.ticket, lambda: None)
    CallQueue.objects.filter(id=old.id).update(finished_at=timezone.now() - timedelta(hours=2))
    claim(lost.id, lost.ticket)
    CallQueue.objects.filter(id=lost.id).update(queue=QUEUE)
    Lane.objects.filter(id=lost.lane_id).update(queue=QUEUE)
    LaneSite.objects.filter(lane_id=lost.lane_id).update(queue=QUEUE)
    scheduled = CallQueue.objects.send(
        sample_tasks.echo, args=["later"], queue=QUEUE, scheduled_at=timezone.now() + timedelta(seconds=1.5)
    )
    eventually(lambda: not CallQueue.objects.filter(id=old.id).exists())
    eventually(CallQueue.objects.filter(id=scheduled.id, state=State.COMPLETED).exists)
    recovered = eventually(CallQueue.objects.filter(id=lost.id, state=State.COMPLETED).first)
    assert [error["type"] for error in recovered.errors] == ["WorkerLost"]
    assert CallQueue.objects.filter(id=fresh.id).exists()
    audit()


def test_a_dispenser_that_was_away_is_done_with_the_old_ticks_in_a_moment(worker: Processes) -> None:
    RateLimitKey.objects.declare("api", throttle=(4, 1))
    CallQueue.objects.send_many([Call(task=sample_tasks.echo, args=["hello"], keys=["api"], queue=QUEUE)] * 200)
    for _ in range(400):
        sample_tasks.app.send_task("dispatcher.tick", queue=DISPENSER_QUEUE)
    last = CallQueue.objects.get(id=CallQueue.objects.send(sample_tasks.echo, args=["last"], queue=ELSEWHERE).id)
    claim(last.id, last.ticket)
    Slot.objects.filter(call=last).update(lease_until=timezone.now())
    sample_tasks.app.send_task("dispatcher.recover", queue=DISPENSER_QUEUE)
    worker.start_dispenser()
    worker.stack.wait_ready()
    # Each tick has something to serve for all of its time: four at a time, they would take two minutes.
    eventually(lambda: CallQueue.objects.get(id=last.id).errors)
    assert CallQueue.objects.waiting().exists()
    worker.stack.kill("dispenser")
    api.cancel(CallQueue.objects.waiting().values_list("id", flat=True))
