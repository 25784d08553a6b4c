"""What the database needs after a migration: the keys that the settings declare, and beat's entries."""

import logging
from datetime import timedelta
from typing import Any

from django.apps import apps
from django.db import connections, router

from dispatcher import lanes
from dispatcher.conf import conf
from dispatcher.limits.policy import Policy, describe

logger = logging.getLogger(__name__)


def after_migrate(using: str) -> None:
    """Make what is missing in this database; whatever people have changed stays as it is.

    Beat reads its entries from the database of its own models, which may be another than that of the calls.
    """
    tables = connections[using].introspection.table_names()
    if using == conf().database and "dispatcher_ratelimitkey" in tables:
        declare_keys()
    if using == _beats_database() and "django_celery_beat_periodictask" in tables:
        schedule(using)


def _beats_database() -> str | None:
    if not apps.is_installed("django_celery_beat"):
        return None
    from django_celery_beat.models import PeriodicTask  # noqa: PLC0415 -- optional app

    return router.db_for_write(PeriodicTask)


def declare_keys() -> None:
    """Make the keys that the settings name exactly; templates wait for the first call that fits them."""
    declared = {name: policy for name, policy in conf().keys.items() if "*" not in name}
    policies = {name: Policy.parse(policy, f"DISPATCHER['keys'][{name!r}]") for name, policy in declared.items()}
    lanes.make_keys(policies, is_declared=True)
    for name, stored in lanes.stored_policies(policies).items():
        if stored != policies[name]:
            logger.warning(
                "key %s has %s; DISPATCHER['keys'] declares %s, which only makes a key: change it with api.limit",
                name,
                describe(stored),
                describe(policies[name]),
            )


def schedule(using: str) -> None:
    """Make beat's entries for the dispenser's tasks where they are missing.

    They never expire: Celery would write the time of it by beat's clock, and a dispenser whose own is ahead would drop
    them all.
    """
    from django_celery_beat.models import CrontabSchedule, PeriodicTask  # noqa: PLC0415 -- optional app

    settings = conf()
    for task, every in (("dispatcher.tick", settings.tick), ("dispatcher.recover", settings.recover_every)):
        ensure_periodic(task, every)
    times = {"minute": "30", "hour": "3", "day_of_week": "*", "day_of_month": "*", "month_of_year": "*"}
    night = _first_or_new(CrontabSchedule.objects.using(using), {**times, "timezone": "UTC"})
    PeriodicTask.objects.using(using).get_or_create(
        name="dispatcher.cleanup",
        defaults={"task": "dispatcher.cleanup", "crontab": night, "queue": settings.dispenser_queue},
    )


def ensure_periodic(task: str, every: timedelta) -> None:
    """Create beat's entry that runs a task of the dispenser's in this interval, unless the entry exists.

    Without django-celery-beat there is none: the workers run by themselves what nothing asks for.
    """
    if (using := _beats_database()) is None:
        return
    from django_celery_beat.models import IntervalSchedule, PeriodicTask  # noqa: PLC0415 -- optional app

    microseconds = {"every": every // timedelta(microseconds=1), "period": IntervalSchedule.MICROSECONDS}
    interval = _first_or_new(IntervalSchedule.objects.using(using), microseconds)
    PeriodicTask.objects.using(using).get_or_create(
        name=task, defaults={"task": task, "interval": interval, "queue": conf().dispenser_queue}
    )


def _first_or_new(rows: Any, values: dict[str, Any]) -> Any:
    """Return a row with these values; there may be several, since people make schedules of their own."""
    return rows.filter(**values).first() or rows.create(**values)
