"""The options of a message: which a call may have, how each is checked, and what it must be."""

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from celery.utils.functional import maybe_list
from kombu import compression, serialization

from dispatcher import validate
from dispatcher.errors import CallInvalid

_HIGHEST_PRIORITY: Final = 255
"""Of AMQP; RabbitMQ and Redis use fewer."""
OF_CANVAS: Final = frozenset({"chain", "chord", "link", "link_error"})
"""The options that are signatures."""


def checked(options: dict[str, Any]) -> dict[str, Any]:
    """Check the options of a message, and drop what is the default. Raises CallInvalid naming the option."""
    stamps = options.get("stamped_headers") or ()
    for name, value in options.items():
        if name in stamps:
            continue
        if name not in CHECKS:
            raise CallInvalid(name, "is no option of a call's message; leave it out, or see the fields of send().")
        is_valid, wanted = CHECKS[name]
        if not is_valid(value):
            raise CallInvalid(name, f"{value!r} {wanted}.")
    hard, soft = options.get("time_limit"), options.get("soft_time_limit")
    if hard and soft and soft > hard:
        raise CallInvalid("soft_time_limit", f"{soft} is more than time_limit ({hard}); give at most that.")
    if stamps:
        options["stamped_headers"] = sorted(stamps)
    for name in OF_CANVAS.intersection(options):
        options[name] = validate.plain(options[name] if name == "chord" else maybe_list(options[name]))
    if options.get("serializer") == "json":
        del options["serializer"]
    return options


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_compression(value: Any) -> bool:
    with suppress(KeyError, TypeError):
        return bool(compression.get_encoder(value))
    return False


def _is_serializer(value: object) -> bool:
    encoders = serialization.registry._encoders  # noqa: SLF001 -- kombu has no other way to ask
    return isinstance(value, str) and value != "pickle" and value in encoders


CHECKS: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    **dict.fromkeys(
        (
            *("argsrepr", "group_id", "kwargsrepr", "origin", "parent_id", "periodic_task_name", "reply_to"),
            *("root_id", "routing_key", "shadow"),
        ),
        (lambda value: isinstance(value, str), "must be a text"),
    ),
    **dict.fromkeys(
        ("group_index", "replaced_task_nesting", "retries"),
        (lambda value: _is_whole(value) and value >= 0, "must be a whole number from 0"),
    ),
    **dict.fromkeys(
        OF_CANVAS,
        (
            lambda value: all(isinstance(each, Mapping) and "task" in each for each in maybe_list(value)),
            "must be signatures, such as task.s()",
        ),
    ),
    **dict.fromkeys(
        ("ignore_result", "immediate", "mandatory"), (lambda value: isinstance(value, bool), "must be True or False")
    ),
    **dict.fromkeys(
        ("time_limit", "soft_time_limit"),
        (
            lambda value: (_is_whole(value) or isinstance(value, float)) and 0 <= value < math.inf,
            "must be a number of seconds",
        ),
    ),
    "compression": (_is_compression, "is not registered with kombu.compression"),
    "delivery_mode": (
        lambda value: value in (1, 2, "transient", "persistent"),
        "must be 1 ('transient') or 2 ('persistent')",
    ),
    "priority": (
        lambda value: _is_whole(value) and 0 <= value <= _HIGHEST_PRIORITY,
        f"must be a whole number from 0 to {_HIGHEST_PRIORITY}, since it is that of the message",
    ),
    "serializer": (
        _is_serializer,
        "is not registered with kombu.serialization, or promises objects; set serializer='json' for the task",
    ),
    "stamped_headers": (
        lambda value: isinstance(value, list | tuple | set) and all(isinstance(name, str) for name in value),
        "must be a list of names",
    ),
}
"""What a message may be given, how each is checked, and what it must be."""
