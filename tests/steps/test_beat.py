"""Beat: what stands in the schedule by another machine's clock does not keep it from ticking."""

from datetime import UTC, datetime, timedelta

import pytest
from celery import signals
from celery.beat import Scheduler, Service
from django.utils import timezone
from django_celery_beat.models import PeriodicTask
from django_celery_beat.schedulers import DatabaseScheduler

from dispatcher.celery import schedule
from project.celery import app
from tests.apps import APPS

# Beat's scheduler commits by itself.
pytestmark = pytest.mark.django_db(transaction=True, available_apps=[*APPS, "django_celery_beat"])

HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def _entries() -> None:
    PeriodicTask.objects.all().delete()
    schedule.schedule("default")
    PeriodicTask.objects.create(name="mine", task="mine", interval=PeriodicTask.objects.first().interval)
    PeriodicTask.objects.update(last_run_at=timezone.now() + HOUR)


def started(scheduler: type[Scheduler]) -> Service:
    """Return beat as it stands right before its first look."""
    service = Service(app, scheduler_cls=scheduler)
    assert service.scheduler.schedule
    signals.beat_init.send(sender=service)
    return service


def wait_of(service: Service, name: str) -> float:
    return service.scheduler.schedule[name].is_due().next


def ran_at() -> dict[str, datetime | None]:
    """Return the last runs as they are stored, without the entry that Celery adds by itself."""
    return dict(PeriodicTask.objects.exclude(name__startswith="celery.").values_list("name", "last_run_at"))


def test_entries_that_ran_in_the_future_are_due_after_their_interval() -> None:
    service = started(DatabaseScheduler)
    assert wait_of(service, "dispatcher.tick") <= 1
    assert wait_of(service, "dispatcher.recover") <= 10
    # Those of the project are its own affair.
    assert wait_of(service, "mine") > 3000


def test_it_is_written_down_for_when_beat_reads_its_schedule_again() -> None:
    started(DatabaseScheduler)
    stored = ran_at()
    assert stored.pop("mine") > timezone.now()
    assert len(stored) == 3
    assert all(at <= timezone.now() for at in stored.values())


def test_an_entry_that_never_ran_and_was_made_in_the_future_is_due_as_well() -> None:
    PeriodicTask.objects.update(last_run_at=None, date_changed=timezone.now() + HOUR)
    assert wait_of(started(DatabaseScheduler), "dispatcher.tick") <= 1


def test_entries_that_ran_in_the_past_are_left_alone() -> None:
    before = timezone.now() - HOUR
    PeriodicTask.objects.update(last_run_at=before)
    started(DatabaseScheduler)
    assert set(ran_at().values()) == {before}


@pytest.mark.parametrize("zone", [UTC, None])
def test_a_schedule_that_is_not_in_the_database_is_corrected_too(zone: object) -> None:
    service = Service(app, scheduler_cls=Scheduler)
    entry = service.scheduler.add(name="tick", task="dispatcher.tick", schedule=timedelta(seconds=1))
    entry.last_run_at = (datetime.now(UTC) + HOUR).replace(tzinfo=zone)
    signals.beat_init.send(sender=service)
    assert entry.is_due().next <= 1
