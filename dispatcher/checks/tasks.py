"""System checks of the limits that tasks are put under: one id per fault, each with its remedy."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from inspect import signature
from typing import Any, Final

from celery import Task, current_app
from celery.backends.base import Backend, DisabledBackend
from django.core import checks

from dispatcher import groups, lanes, limited
from dispatcher.conf import Conf, conf, is_eager
from dispatcher.errors import ConfigurationError, PolicyInvalid

_CLOSES_CHORDS: Final = "celery.chord_unlock"


@checks.register("dispatcher")
def check_tasks(**_: Any) -> list[checks.CheckMessage]:
    """Check DISPATCHER["tasks"] and @limited: E021 keys, E022 templates, W021 tasks, W022 their keys, W016."""
    found: list[checks.CheckMessage] = []
    try:
        settings = conf()
    except ConfigurationError:
        # E001 has it.
        return []
    if settings.tasks:
        limited.import_tasks()
    for where, pattern, keys in limited.declared(settings):
        named = [task for name, task in current_app.tasks.items() if pattern and limited.matches(pattern, name)]
        if pattern is not None and not named:
            hint = "Correct the name, or import its module where the Celery app finds it."
            found.append(checks.Warning(f"{where}: no task has this name.", hint=hint, id="dispatcher.W021"))
        if keys is None or callable(keys):
            continue
        if isinstance(keys, str) or not isinstance(keys, Mapping | Sequence | set | frozenset) or pattern is None:
            hint = 'Give a list of names, {name: cost}, None, or a function, such as {"emails.tasks.*": ["smtp"]}.'
            found.append(checks.Error(f"{where} is {keys!r}.", hint=hint, id="dispatcher.E021"))
            continue
        found += [fault for key in keys for fault in _key_faults(where, key, named)]
    return [*found, *_lost(settings)]


def _lost(settings: Conf) -> Iterator[checks.CheckMessage]:
    """Return a warning for tasks that the settings leave to a broker which no other process reaches."""
    if not settings.tasks or is_eager() or not str(current_app.conf.broker_write_url).startswith("memory"):
        return
    tasks = [name for name in sorted(current_app.tasks) if not name.startswith(("celery.", "dispatcher."))]
    tasks += [_CLOSES_CHORDS] if _is_closing_a_task() else []
    if lost := [name for name in tasks if limited.shown(name) is None]:
        message = (
            f"DISPATCHER['tasks'] leaves {len(lost)} tasks, such as {lost[0]}, to the broker, which is the memory of "
            "each process: what .delay() sends of them reaches no worker."
        )
        hint = 'Add "*": [], which sends all others through the database, or set CELERY_BROKER_URL to a broker.'
        yield checks.Warning(message, hint=hint, id="dispatcher.W016")


def _is_closing_a_task() -> bool:
    """Return whether a task closes chords: there is a result backend, and it does not close them by itself."""
    # One that can't be used has errors of its own kind.
    with suppress(Exception):
        closes = getattr(current_app.backend.apply_chord, "__func__", None)
        return closes is Backend.apply_chord and not isinstance(current_app.backend, DisabledBackend)
    return False


def _key_faults(where: str, key: Any, named: Sequence[Task]) -> list[checks.CheckMessage]:
    """Return what is wrong with the name or template of a key, for these tasks."""
    found: list[checks.CheckMessage] = []
    try:
        wanted = limited.names_in(key)
        name = groups.key_name(re.sub(r"\{[^}]*\}", "x", key))
    except (TypeError, ValueError) as error:
        hint = "Name a key, or a template with parameters of the task, such as tenant:{tenant_id}."
        return [checks.Error(f"{where}: {key!r} is not a key: {error}", hint=hint, id="dispatcher.E021")]
    for task in named:
        parameters = signature(task.run).parameters.values()
        takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters)
        if missing := sorted(wanted - {each.name for each in parameters}) if not takes_all else []:
            hint = f"Name one of {', '.join(each.name for each in parameters) or 'none: it has no parameters'}."
            message = f"{where}: {key!r} names {missing[0]!r}, which {task.name} does not take."
            found.append(checks.Error(message, hint=hint, id="dispatcher.E022"))
    with suppress(PolicyInvalid):
        if lanes.declared_policy(name) is None:
            hint = (
                "Declare it in DISPATCHER['keys']. A key that RateLimitKey.objects.declare has made is found, too; one "
                "that does not exist is refused where the task is sent (UnknownKey)."
            )
            message = f"{where}: no setting declares the key {key!r}."
            found.append(checks.Warning(message, hint=hint, id="dispatcher.W022"))
    return found
