"""Limits of tasks: the keys that every call of a task spends, wherever it is sent from.

The setting DISPATCHER["tasks"] declares them by name, as Celery's `task_routes` does, and `limited` beside the code;
what the setting has wins. `celery_rate_limits = "global"` adds the task's own `rate_limit`, as the key `task:NAME`.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import translate
from string import Formatter
from typing import Any, Final, TypeVar

from celery import Task, current_app
from celery.local import Proxy
from celery.utils.time import rate
from django.core.signals import setting_changed
from django.dispatch import receiver

from dispatcher.conf import Conf, conf
from dispatcher.errors import CallInvalid, ConfigurationError

T = TypeVar("T")
Keys = Sequence[str] | Mapping[str, int] | Callable[..., Any]
"""Names or templates such as `tenant:{tenant_id}`, {name: cost}, or what returns these for the task's arguments."""
Router = Callable[..., Keys | None]
"""What is asked for the keys of a call: (name, args, kwargs, options, task=...), as a router of Celery."""

RATE_LIMIT_KEY: Final = "task:"
"""The beginning of the names of the keys that tasks' own rate limits make."""
_OWN: Final = "dispatcher."
"""The beginning of the names of the dispatcher's own tasks, which are never limited."""
_INLINE: Final = ("celery.map", "celery.starmap")
"""Celery's tasks that run another one many times, by themselves."""
_decorated: Final[list[tuple[Any, Keys]]] = []


class _Known(dict[str, "tuple[Router, ...]"]):
    """What `routers_of` returns, by task, once it is found."""

    def __missing__(self, name: str) -> "tuple[Router, ...]":
        """Find it."""
        settings = conf()
        found = tuple(_routers(name, settings))
        # One that is registered later may have a rate limit.
        if found or settings.celery_rate_limits != "global" or name in current_app.tasks:
            self[name] = found
        return found


_known: Final = _Known()
routers_of: Final[Callable[[str], tuple[Router, ...]]] = _known.__getitem__
"""What gives the calls of a task their keys, in order; nothing for a task without limits, which pays this lookup."""


def limited(*names: str, keys: Keys | None = None) -> Callable[[T], T]:
    """Put a task under limits wherever it is sent from; it is written above `@shared_task` or `@app.task`.

    names: of keys, or templates such as `tenant:{tenant_id}` that the task's arguments fill; or keys: {name: cost}, or
    what is called with the arguments and returns names or costs. Raises ConfigurationError below the task's decorator.
    """
    if bool(names) == (keys is not None):
        message = 'limited() takes names of keys, such as @limited("smtp"), or keys=.'
        raise ConfigurationError(message)

    def mark(task: T) -> T:
        # Its type: asked for anything else, Celery's proxy would set up the app.
        if not issubclass(type(task), Proxy | Task):
            message = f"@limited is written above the decorator that makes a task of {task!r}, such as @shared_task."
            raise ConfigurationError(message)
        _decorated.append((task, names if keys is None else keys))
        _known.clear()
        return task

    return mark


@receiver(setting_changed)
def forget(*, setting: str, **_: Any) -> None:
    """Ask the settings again, which tests have changed."""
    if setting == "DISPATCHER":
        _known.clear()


def keys_of(
    name: str, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None, options: Mapping[str, Any]
) -> dict[str, int] | None:
    """Return the keys that a call of a task spends, with their costs; None if it is not limited. Raises CallInvalid."""
    if not (routers := routers_of(name)):
        return None
    args, kwargs, task = args or (), kwargs or {}, current_app.tasks.get(name)
    given = (router(name, args, kwargs, options, task=task) for router in routers)
    keys = next((each for each in given if each is not None), None)
    if keys is None:
        return None
    if callable(keys):
        keys = _called(keys, _arguments(name, task, args, kwargs))
    if isinstance(keys, str) or not isinstance(keys, Mapping | Sequence | set | frozenset):
        raise CallInvalid("keys", f"{keys!r}, of the task {name}, must be a list of names or {{name: cost}}.")
    costs = dict(keys) if isinstance(keys, Mapping) else dict.fromkeys(keys, 1)
    if any("{" in str(each) for each in costs):
        arguments = _arguments(name, task, args, kwargs)
        costs = {_filled(each, name, arguments): cost for each, cost in costs.items()}
    if _has_rate_limit(task):
        costs.setdefault(f"{RATE_LIMIT_KEY}{name}", 1)
    return costs


def declared(settings: Conf) -> Iterator[tuple[str, str | None, Any]]:
    """Yield what declares limits: where it is, the name or pattern of its tasks (None: a router), and the keys."""
    for where, tables in enumerate(_tables(settings)):
        if not isinstance(tables, Mapping):
            yield f"DISPATCHER['tasks'][{where}]", None, tables
            continue
        for pattern, keys in tables.items():
            yield f"DISPATCHER['tasks'][{pattern!r}]", pattern, keys
    for task, keys in _decorated:
        yield f"@limited of {task.name}", task.name, keys


def shown(name: str) -> list[str] | None:
    """Return the keys of a task's calls as they are declared, for people; None for a task without limits."""
    found: list[str] | None = None
    for router in routers_of(name):
        if not isinstance(router, _Always):
            words = [f"by {getattr(router, '__name__', router)}"]
        elif router.keys is None:
            break
        else:
            words = ["by its arguments"] if callable(router.keys) else [*map(str, router.keys)]
        found = [*(found or ()), *words]
    if found is not None and _has_rate_limit(current_app.tasks.get(name)):
        found.append(f"{RATE_LIMIT_KEY}{name}")
    return found


def rate_limit_of(key: str) -> dict[str, Any] | None:
    """Return the limits of the key that a task's own `rate_limit` makes; None for any other key."""
    if not key.startswith(RATE_LIMIT_KEY):
        return None
    task = current_app.tasks.get(key.removeprefix(RATE_LIMIT_KEY))
    if not _has_rate_limit(task):
        return None
    limit = str(task.rate_limit) if "/" in str(task.rate_limit) else f"{task.rate_limit}/s"
    return {"throttle": limit if limit.partition("/")[0].isdecimal() else (1, 1 / rate(limit))}


def import_tasks() -> None:
    """Import the modules of tasks as a worker does, but for the checks of Django that it runs then."""
    for module in current_app.loader.default_modules:
        current_app.loader.import_task_module(module)
    current_app.autodiscover_tasks(force=True)


def names_in(template: str) -> set[str]:
    """Return the parameters that a template names. Raises ValueError if it can't be read."""
    named = [field for _, field, _, _ in Formatter().parse(template) if field is not None]
    return {re.split(r"[.\[]", field, maxsplit=1)[0] for field in named}


def matches(pattern: str, name: str) -> bool:
    """Return whether a name or pattern of the setting is that of a task."""
    return name == pattern or re.fullmatch(translate(pattern), name) is not None


def _has_rate_limit(task: Task | None) -> bool:
    """Return whether a task has a rate limit of its own, which holds over all workers."""
    return conf().celery_rate_limits == "global" and task is not None and bool(rate(task.rate_limit))


def _tables(settings: Conf) -> Sequence[Any]:
    return [settings.tasks] if isinstance(settings.tasks, Mapping) else settings.tasks


def _routers(name: str, settings: Conf) -> Iterator[Router]:
    """Yield what gives a task its keys: in each table its name, or else the first pattern that fits."""
    if name.startswith(_OWN):
        return
    if name in _INLINE:
        yield _refuse_inline
    for table in _tables(settings):
        if not isinstance(table, Mapping):
            yield table
        elif name in table:
            yield _Always(table[name])
            return
        elif (pattern := next((each for each in table if matches(each, name)), None)) is not None:
            yield _Always(table[pattern])
            return
    for task, keys in _decorated:
        if task.name == name:
            yield _Always(keys)
            return
    if settings.celery_rate_limits == "global" and _has_rate_limit(current_app.tasks.get(name)):
        yield _Always(())


class _Always:
    """A router that gives every call of a task the same keys."""

    def __init__(self, keys: Keys | None) -> None:
        self.keys = keys

    def __call__(self, *_: Any, **__: Any) -> Keys | None:
        """Return the keys."""
        return self.keys


def _refuse_inline(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], *_: Any, **__: Any) -> None:
    """Refuse to run a limited task inside of another one, where no limit is asked."""
    inner = kwargs.get("task") or next(iter(args), None) or {}
    of = inner.get("task") if isinstance(inner, Mapping) else getattr(inner, "name", inner)
    if isinstance(of, str) and shown(of):
        raise CallInvalid(
            "task", f"{name} would run {of}, which is limited, without asking its limits; send a group of it."
        )


def _called(keys: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call what returns the keys with those of the task's arguments that it takes."""
    parameters = inspect.signature(keys).parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    return keys(**{name: value for name, value in arguments.items() if takes_all or name in parameters})


def _arguments(name: str, task: Task | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by the names of the task's parameters; of an unknown task those given by name."""
    if task is None:
        return dict(kwargs)
    signature = inspect.signature(task.run)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise CallInvalid("args", f"{name} can't be called so: {error}; its keys are made of its arguments.") from error
    bound.apply_defaults()
    more = [each.name for each in signature.parameters.values() if each.kind is each.VAR_KEYWORD]
    return {**bound.arguments, **{key: value for each in more for key, value in bound.arguments[each].items()}}


def _filled(template: str, name: str, arguments: Mapping[str, Any]) -> str:
    try:
        return template.format(**arguments)
    except (LookupError, AttributeError, ValueError) as error:
        raise CallInvalid(
            "keys",
            f"{template!r}, a key of the task {name}, can't be filled from its arguments: {error!r}; name a parameter "
            f"of the task, such as {', '.join(map(repr, arguments)) or 'those given by name'}.",
        ) from error
