"""Checks of the Celery app, and of what is installed around the dispatcher."""

from importlib.util import find_spec
from typing import Any

from celery import current_app
from django.apps import apps
from django.core import checks
from django.db import connections, router
from psycopg import IsolationLevel

from dispatcher.celery import fence
from dispatcher.checks.base import NAMED, alias_of_calls, not_ready, read_settings
from dispatcher.engine import compose
from dispatcher.models import CallQueue
from dispatcher.sql.errors import NotPostgreSQL, check_kind

_READ_COMMITTED = (None, IsolationLevel.READ_COMMITTED)
_PICKLE = {"pickle", "application/x-python-serialize"}


@checks.register("dispatcher")
def check_celery(**_: Any) -> list[checks.CheckMessage]:
    """Check the Celery app: E005 its tasks can't claim calls, or there is none, E006 pickle, W019 Celery's limits."""
    found: list[checks.CheckMessage] = []
    if not compose.has_app():
        found.append(checks.Error(compose.NO_APP, hint=compose.IMPORT_APP, id="dispatcher.E005"))
    for problem in fence.fence_all(current_app):
        message = f"The calls of a task would never be claimed: {problem}."
        hint = "Give the task another base class, such as your own subclass of dispatcher.celery.DispatchedTask."
        found.append(checks.Error(message, hint=hint, id="dispatcher.E005"))
    if _PICKLE.intersection(current_app.conf.accept_content):
        message = "The Celery app accepts pickle, so anyone who reaches the broker can run code."
        found.append(checks.Error(message, hint='Set accept_content = ["json"].', id="dispatcher.E006"))
    rated = sorted(name for name, task in current_app.tasks.items() if task.rate_limit)
    if rated and read_settings().celery_rate_limits != "global":
        message = f"Celery's rate_limit has no effect on calls of direct queues: that of {', '.join(rated[:NAMED])}."
        hint = (
            "Set DISPATCHER['celery_rate_limits'] = \"global\", so that it holds over all workers, or give the calls a "
            'key that is limited, such as {"rate": {"limit": 100, "period": "PT1M"}}.'
        )
        found.append(checks.Warning(message, hint=hint, id="dispatcher.W019"))
    return found


@checks.register("dispatcher")
def check_installed(**_: Any) -> list[checks.CheckMessage]:
    """Check the installation: W001 nothing ticks, W023 psycopg2, E007 not PostgreSQL, E009 isolation, E014 models."""
    found: list[checks.CheckMessage] = []
    if find_spec("psycopg2") is not None:
        message = "psycopg2 is installed beside psycopg 3, which Django uses for all databases where it finds both."
        hint = "Run your tests with psycopg 3, then uninstall psycopg2, or silence this check."
        found.append(checks.Warning(message, hint=hint, id="dispatcher.W023"))
    if not (apps.is_installed("django_celery_beat") or _has_plain_entry() or read_settings().fallback_schedule):
        message = (
            "Nothing runs dispatcher.tick: django_celery_beat is not installed, CELERY_BEAT_SCHEDULE has no entry for "
            "it, and DISPATCHER['fallback_schedule'] is False."
        )
        hint = (
            'Add "django_celery_beat" to INSTALLED_APPS, or entries to CELERY_BEAT_SCHEDULE, or leave '
            "fallback_schedule at True, so that workers tick by themselves."
        )
        found.append(checks.Warning(message, hint=hint, id="dispatcher.W001"))
    alias = alias_of_calls()
    if alias not in connections:
        message = f"DISPATCHER['database'] is {alias!r}, which is not in DATABASES."
        return [*found, checks.Error(message, hint=f"Use one of {', '.join(connections)}.", id="dispatcher.E002")]
    try:
        check_kind(connections[alias])
    except NotPostgreSQL as error:
        found.append(not_ready(error, "dispatcher.E007"))
    if connections[alias].settings_dict["OPTIONS"].get("isolation_level") not in _READ_COMMITTED:
        message = f"DATABASES[{alias!r}] has another isolation level than READ COMMITTED."
        hint = "What was waited for must be seen: leave isolation_level out of its OPTIONS."
        found.append(checks.Error(message, hint=hint, id="dispatcher.E009"))
    if (elsewhere := router.db_for_write(CallQueue)) != alias:
        message = (
            f"DISPATCHER['database'] is {alias!r}, but by DATABASE_ROUTERS the dispatcher's models are in "
            f"{elsewhere!r}: the admin and the managers would look there."
        )
        hint = (
            'Put "dispatcher.routers.DispatcherRouter" first in DATABASE_ROUTERS, then run '
            f"manage.py migrate --database {alias}."
        )
        found.append(checks.Error(message, hint=hint, id="dispatcher.E014"))
    return found


def _has_plain_entry() -> bool:
    """Return whether beat's schedule in the settings names the tick."""
    entries = (current_app.conf.beat_schedule or {}).values()
    return any(entry.get("task") == "dispatcher.tick" for entry in entries if isinstance(entry, dict))
