"""Provision: a migration makes what is missing, and leaves alone what people have changed."""

from datetime import timedelta
from typing import Any

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db.models import Model
from django_celery_beat.models import CrontabSchedule, IntervalSchedule, PeriodicTask

from dispatcher.celery import schedule
from dispatcher.errors import PolicyInvalid
from dispatcher.models import RateLimitKey
from project.celery import app as project_app

pytestmark = [pytest.mark.django_db, pytest.mark.django]

NAMES = ["dispatcher.cleanup", "dispatcher.recover", "dispatcher.tick"]


@pytest.fixture(autouse=True)
def _nothing_provided() -> None:
    PeriodicTask.objects.all().delete()
    IntervalSchedule.objects.all().delete()
    CrontabSchedule.objects.all().delete()


def entries() -> list[dict[str, Any]]:
    return list(PeriodicTask.objects.order_by("name").values())


# Beat's entries


def test_beat_has_entries_to_tick_recover_and_clean_up() -> None:
    schedule.after_migrate("default")
    project_app.loader.import_default_modules()
    assert set(NAMES) <= set(project_app.tasks)
    made = {entry.name: entry for entry in PeriodicTask.objects.all()}
    assert sorted(made) == NAMES
    assert all(entry.task == entry.name and entry.enabled for entry in made.values())
    assert {entry.queue for entry in made.values()} == {"dispatcher"}
    assert made["dispatcher.tick"].schedule.run_every == timedelta(seconds=1)
    assert made["dispatcher.recover"].schedule.run_every == timedelta(seconds=10)
    assert (made["dispatcher.cleanup"].crontab.hour, made["dispatcher.cleanup"].crontab.minute) == ("3", "30")
    # Beat's clock would say when: a dispenser that is an hour ahead would take them all for expired.
    assert {entry.expire_seconds for entry in made.values()} == {None}


def test_a_second_migration_changes_nothing() -> None:
    call_command("migrate", verbosity=0)
    before = entries()
    assert [entry["name"] for entry in before] == NAMES
    call_command("migrate", verbosity=0)
    assert entries() == before
    assert (IntervalSchedule.objects.count(), CrontabSchedule.objects.count()) == (2, 1)


def test_what_a_user_has_edited_is_kept() -> None:
    schedule.after_migrate("default")
    often, _ = IntervalSchedule.objects.get_or_create(every=500, period=IntervalSchedule.MICROSECONDS)
    PeriodicTask.objects.filter(name="dispatcher.tick").update(enabled=False, interval=often, queue="mine")
    PeriodicTask.objects.filter(name="dispatcher.cleanup").update(task="mine.cleanup")
    before = entries()
    schedule.after_migrate("default")
    assert entries() == before


def test_schedules_of_the_user_that_are_alike_do_no_harm() -> None:
    for _ in range(2):
        IntervalSchedule.objects.create(every=1_000_000, period=IntervalSchedule.MICROSECONDS)
        CrontabSchedule.objects.create(minute="30", hour="3", timezone="UTC")
    schedule.after_migrate("default")
    assert [entry["name"] for entry in entries()] == NAMES


def test_the_settings_say_how_often_and_where(settings: Any) -> None:
    settings.DISPATCHER = {"tick": 0.5, "recover_every": timedelta(minutes=1), "dispenser_queue": "other"}
    schedule.after_migrate("default")
    assert PeriodicTask.objects.get(name="dispatcher.tick").schedule.run_every == timedelta(seconds=0.5)
    assert PeriodicTask.objects.get(name="dispatcher.recover").schedule.run_every == timedelta(minutes=1)
    assert set(PeriodicTask.objects.values_list("queue", flat=True)) == {"other"}


def test_a_project_without_django_celery_beat_migrates(monkeypatch: pytest.MonkeyPatch) -> None:
    is_installed = apps.is_installed
    monkeypatch.setattr(apps, "is_installed", lambda name: name != "django_celery_beat" and is_installed(name))
    schedule.after_migrate("default")
    assert entries() == []


def test_keys_are_made_in_the_database_of_the_calls_alone_and_beat_s_entries_in_that_of_its_models(
    settings: Any,
) -> None:
    settings.DISPATCHER = {"database": "other", "keys": {"api": {}}}
    schedule.after_migrate("default")
    assert not RateLimitKey.objects.using("default").exists()
    assert [entry["name"] for entry in entries()] == NAMES


def test_beat_s_entries_are_not_made_where_beat_does_not_look(settings: Any) -> None:
    settings.DATABASE_ROUTERS = [BeatElsewhere()]
    schedule.after_migrate("default")
    assert entries() == []


class BeatElsewhere:
    """A router of a project that keeps beat's tables in a database of their own."""

    def db_for_write(self, model: type[Model], **_: Any) -> str | None:
        return "other" if model._meta.app_label == "django_celery_beat" else None


# Keys


def test_keys_that_the_settings_name_are_made_and_templates_wait(settings: Any) -> None:
    settings.DISPATCHER = {
        "keys": {
            "api": {"concurrency": 4, "rate": {"limit": 10, "period": "PT1S"}, "throttle": {"limit": 20, "period": 1}},
            "unlimited": {},
            "tenant:*": {"concurrency": 1},
        }
    }
    schedule.after_migrate("default")
    assert sorted(RateLimitKey.objects.values_list("name", flat=True)) == ["api", "unlimited"]
    api = RateLimitKey.objects.get(name="api")
    assert (api.concurrency, api.rate_limit, api.rate_period) == (4, 10, timedelta(seconds=1))
    assert (api.throttle_limit, api.throttle_period) == (20, timedelta(seconds=1))


def test_a_limit_that_was_changed_survives_a_deploy(settings: Any) -> None:
    settings.DISPATCHER = {"keys": {"api": {"concurrency": 4}}}
    schedule.after_migrate("default")
    RateLimitKey.objects.update(concurrency=9, is_paused=True)
    settings.DISPATCHER = {"keys": {"api": {"concurrency": 5}}}
    schedule.after_migrate("default")
    assert list(RateLimitKey.objects.values_list("name", "concurrency", "is_paused")) == [("api", 9, True)]


def test_a_policy_that_is_wrong_is_named_by_its_setting(settings: Any) -> None:
    settings.DISPATCHER = {"keys": {"api": {"rate": {"limit": 0, "period": "PT1S"}}}}
    with pytest.raises(PolicyInvalid, match=r"^DISPATCHER\['keys'\]\['api'\]\.rate\.limit: "):
        schedule.after_migrate("default")


def test_a_limit_that_the_settings_declare_and_the_key_does_not_have_is_reported(settings: Any, caplog: Any) -> None:
    settings.DISPATCHER = {"keys": {"api": {"concurrency": 4}, "same": {"concurrency": 1}}}
    schedule.declare_keys()
    settings.DISPATCHER = {"keys": {"api": {"concurrency": 3}, "same": {"concurrency": 1}}}
    schedule.declare_keys()
    (message,) = [record.getMessage() for record in caplog.records if record.name == "dispatcher.celery.schedule"]
    assert message.startswith("key api has concurrency 4; DISPATCHER['keys'] declares concurrency 3, ")
    assert message.endswith("change it with api.limit")
