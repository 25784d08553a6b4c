"""System checks: one id per fault, each with its remedy."""

from collections.abc import Sequence
from dataclasses import fields
from datetime import timedelta
from typing import Any

from celery import current_app
from django.apps import AppConfig, apps
from django.core import checks
from django.db import connections
from psycopg import IsolationLevel

from dispatcher.conf import RETENTION, SCOPES, Conf, conf
from dispatcher.errors import ConfigurationError, PolicyInvalid
from dispatcher.fields import key_name
from dispatcher.policy import Policy
from dispatcher.retry import Retry

_POSTGRESQL_14 = 140_000
_READ_COMMITTED = (None, IsolationLevel.READ_COMMITTED)
_PICKLE = {"pickle", "application/x-python-serialize"}
_POSITIVE = ("batch", "lanes_per_pass", "max_payload_bytes", "dispatch_ahead", "poison_after")


@checks.register("dispatcher")
def check_settings(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[checks.CheckMessage]:
    """Check the DISPATCHER setting: E001 unknown or of the wrong type, E002 ranges, E003 policies, E004 retry."""
    del app_configs
    try:
        settings = conf()
    except ConfigurationError as error:
        return [checks.Error(str(error), id="dispatcher.E001")]
    return [*_ranges(settings), *_policies(settings)]


@checks.register("dispatcher")
def check_celery(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[checks.CheckMessage]:
    """Check the Celery app: E005 its tasks lack the base class, E006 it accepts pickle."""
    from dispatcher.celery import DispatchedTask  # noqa: PLC0415 -- it needs the app registry

    del app_configs
    found: list[checks.CheckMessage] = []
    if not issubclass(current_app.Task, DispatchedTask):
        found.append(
            checks.Error(
                f"The tasks of the Celery app {current_app.main!r} do not claim their calls, so none would ever end.",
                hint='Make the app with Celery("project", task_cls="dispatcher.celery:DispatchedTask"), and import it '
                "in your project's __init__.py.",
                id="dispatcher.E005",
            )
        )
    if _PICKLE.intersection(current_app.conf.accept_content):
        found.append(
            checks.Error(
                "The Celery app accepts pickle, so whoever reaches the broker can run code.",
                hint='Set accept_content = ["json"].',
                id="dispatcher.E006",
            )
        )
    return found


@checks.register("dispatcher")
def check_installed(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[checks.CheckMessage]:
    """Check the installation: W001 nothing ticks, E007 the database is not PostgreSQL, E009 its isolation level."""
    del app_configs
    found: list[checks.CheckMessage] = []
    if not apps.is_installed("django_celery_beat"):
        found.append(
            checks.Warning(
                "django_celery_beat is not installed, so beat does not make the dispenser tick.",
                hint='Add "django_celery_beat" to INSTALLED_APPS, or run dispatcher.tick every second in another way.',
                id="dispatcher.W001",
            )
        )
    alias = _alias()
    if alias not in connections:
        found.append(
            checks.Error(
                f"DISPATCHER['database'] is {alias!r}, which is not in DATABASES.",
                hint=f"Use one of {', '.join(connections)}.",
                id="dispatcher.E002",
            )
        )
    elif connections[alias].vendor != "postgresql":
        found.append(
            checks.Error(
                f"The database {alias!r} is {connections[alias].vendor}; the dispatcher needs PostgreSQL 14 or newer.",
                hint="Its limits rest on FOR UPDATE SKIP LOCKED. Set DISPATCHER['database'] to a PostgreSQL database.",
                id="dispatcher.E007",
            )
        )
    elif connections[alias].settings_dict["OPTIONS"].get("isolation_level") not in _READ_COMMITTED:
        found.append(
            checks.Error(
                f"DATABASES[{alias!r}] has another isolation level than READ COMMITTED.",
                hint="What was waited for must be seen: leave isolation_level out of its OPTIONS.",
                id="dispatcher.E009",
            )
        )
    return found


@checks.register("dispatcher", checks.Tags.database)
def check_server(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **_: Any
) -> list[checks.CheckMessage]:
    """Check the server: E008 it is older than PostgreSQL 14. Runs with `check --database` and with migrate."""
    del app_configs
    alias = _alias()
    if alias not in (databases or ()) or connections[alias].vendor != "postgresql":
        return []
    connection = connections[alias]
    connection.ensure_connection()
    version = connection.connection.info.server_version
    if version >= _POSTGRESQL_14:
        return []
    hint = "Upgrade the server to PostgreSQL 14 or newer."
    return [checks.Error(f"PostgreSQL is version {version}.", hint=hint, id="dispatcher.E008")]


def _alias() -> str:
    try:
        return conf().database
    except ConfigurationError:
        return Conf().database


def _ranges(settings: Conf) -> list[checks.CheckMessage]:
    wrong = [
        f"DISPATCHER[{name!r}] is {getattr(settings, name)!r}: give a whole number from 1."
        for name in _POSITIVE
        if getattr(settings, name) < 1
    ]
    wrong += [
        f"DISPATCHER[{field.name!r}] must not be negative."
        for field in fields(Conf)
        if isinstance(value := getattr(settings, field.name), timedelta) and value < timedelta(0)
    ]
    wrong += [
        f"DISPATCHER['http_anonymous'] has {scope!r}: give scopes of {', '.join(SCOPES)}, such as read or fetch:mail*."
        for scope in settings.http_anonymous
        if str(scope).partition(":")[0] not in SCOPES
    ]
    if settings.tick <= timedelta(0):
        wrong.append("DISPATCHER['tick'] must be longer than 0.")
    if settings.heartbeat * 2 > settings.run_lease:
        wrong.append(
            "DISPATCHER['run_lease'] must be at least twice DISPATCHER['heartbeat'], or calls that run are lost."
        )
    if settings.min_pause * 2 > settings.horizon:
        wrong.append("DISPATCHER['horizon'] must be at least twice DISPATCHER['min_pause'], or throttles run dry.")
    wrong += [
        f"DISPATCHER['retention'][{state!r}] is not an ended state; use {', '.join(RETENTION)}."
        for state in settings.retention
        if state not in RETENTION
    ]
    wrong += [
        f"DISPATCHER['retention'][{state!r}] is {kept!r}: give a timedelta from 0, or None to keep them."
        for state, kept in settings.retention.items()
        if kept is not None and (not isinstance(kept, timedelta) or kept < timedelta(0))
    ]
    return [checks.Error(problem, id="dispatcher.E002") for problem in wrong]


def _policies(settings: Conf) -> list[checks.CheckMessage]:
    found: list[checks.CheckMessage] = []
    for name, policy in settings.keys.items():
        try:
            key_name(name.replace("*", "x") if isinstance(name, str) else name)
            Policy.parse(policy, f"DISPATCHER['keys'][{name!r}]")
        except (PolicyInvalid, ValueError) as error:
            found.append(checks.Error(str(error), id="dispatcher.E003"))
    try:
        Retry.parse(settings.retry, "DISPATCHER['retry']")
    except PolicyInvalid as error:
        found.append(checks.Error(str(error), id="dispatcher.E004"))
    return found
