"""What the database needs after a migration: the keys that the settings declare, and beat's entries."""

import logging
from datetime import timedelta

from django.apps import apps
from django.db import connections, router

from dispatcher import lanes
from dispatcher.conf import conf
from dispatcher.lifecycle.periodic_runs import CLEANUP, RECOVER, TICK
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
        schedule()


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


def schedule() -> None:
    """Make beat's entries for the dispenser's tasks where they are missing.

    They never expire: Celery would write the time of it by beat's clock, and a dispenser whose own is ahead would drop
    them all.
    """
    settings = conf()
    for task, every in ((TICK, settings.tick), (RECOVER, settings.recover_every), (CLEANUP, None)):
        ensure_periodic(task, every)


def ensure_periodic(task: str, every: timedelta | None) -> None:
    """Create beat's entry that runs a task of the dispenser's in this interval, or at night, unless the entry exists.

    Without django-celery-beat there is none: the workers run by themselves what nothing asks for.
    """
    if (using := _beats_database()) is None:
        return
    from django_celery_beat.models import CrontabSchedule, IntervalSchedule, PeriodicTask  # noqa: PLC0415 -- optional app

    # There may be several of each kind, since people make schedules of their own.
    if every is None:
        times = {"minute": "30", "hour": "3", "day_of_week": "*", "day_of_month": "*", "month_of_year": "*"}
        kind, row, values = "crontab", CrontabSchedule, {**times, "timezone": "UTC"}
    else:
        microseconds = {"every": every // timedelta(microseconds=1), "period": IntervalSchedule.MICROSECONDS}
        kind, row, values = "interval", IntervalSchedule, microseconds
    rows = row.objects.using(using)
    when = rows.filter(**values).first() or rows.create(**values)
    PeriodicTask.objects.using(using).get_or_create(
        name=task, defaults={"task": task, kind: when, "queue": conf().dispenser_queue}
    )
