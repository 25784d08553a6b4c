"""What the fields of a call must look like. Pure: each function returns the value, or raises CallInvalid naming it."""

import inspect
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import partial, wraps
from typing import Any, Final, ParamSpec, TypeVar
from uuid import UUID

from kombu.utils import json as celery_json

from dispatcher.errors import CallInvalid, FieldInvalid
from dispatcher.extension import HTTP_MISSING, registered
from dispatcher.limits.turns import MOST_WEIGHT
from dispatcher.states import Delivery

KEY_PATTERN: Final = r"^[a-zA-Z0-9][a-zA-Z0-9._:-]*$"
"""A key's name (Open Job Spec, rate limiting, section 6.2)."""
GROUP_PATTERN: Final = KEY_PATTERN.replace("$", r"\*$")
"""The name of a group: the beginning that the names of its members share, and a `*`."""
STORED_KEY_PATTERN: Final = KEY_PATTERN.replace("$", r"\*?$")

LONGEST_NAME: Final = 255
EARLIEST: Final = datetime.min.replace(tzinfo=UTC) + timedelta(days=1)
LATEST: Final = datetime.max.replace(tzinfo=UTC) - timedelta(days=1)
"""Python's calendar, but for a day at both ends: PostgreSQL stores more, which Python can't represent."""
_DEEPEST: Final = 64
_LONGEST_INTEGER: Final = 13_000
"""Bits: Python writes no more than 4,300 digits."""
_encoder = partial(json.JSONEncoder, ensure_ascii=False, separators=(",", ":"))
_ENCODERS: Final = {False: _encoder(), True: _encoder(default=celery_json.JSONEncoder().default)}
"""By whether it holds these, too. Made once: `json.dumps` would make one for each value."""

P = ParamSpec("P")
R = TypeVar("R")


def only_named(error: type[FieldInvalid], remedies: Mapping[str, str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Have a function refuse arguments that it does not have, by name and with the remedy. Raises `error`."""

    def wrap(function: Callable[P, R]) -> Callable[P, R]:
        parameters = inspect.signature(function).parameters
        by_place = sum(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in parameters.values())
        known = [name for name in parameters if name != "self"]

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs:
                if name not in parameters:
                    near = get_close_matches(name, known, n=1)
                    guess = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}."
                    raise error(name, f"is not known here; {remedies.get(name, guess)}")
            if len(args) > by_place:
                problem = f"must be given by its name: {', '.join(known[max(0, by_place - 1) :])}."
                raise error(repr(args[by_place]), problem)
            return function(*args, **kwargs)

        return checked

    return wrap


def call_ids(calls: object) -> list[UUID]:
    """Return the ids of calls: of a call, of an id, or of several of them. Raises CallInvalid for anything else."""
    several = calls if isinstance(calls, Iterable) and not isinstance(calls, str | bytes) else [calls]
    return [_call_id(each) for each in several]


def _call_id(call: object) -> UUID:
    found = getattr(call, "pk", call)
    try:
        return found if isinstance(found, UUID) else UUID(found)  # type: ignore[arg-type]
    except (TypeError, ValueError, AttributeError):
        raise CallInvalid("calls", f"{call!r} is no call; give a call, its id, or a list of these.") from None


def name(field: str, value: object) -> str:
    """Return a text of 1 to 255 characters."""
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_NAME or not _is_storable(value):
        raise CallInvalid(field, f"{value!r} must be a text of 1 to {LONGEST_NAME} characters.")
    return value


def key_name(value: object) -> str:
    """Return a key's name as the Open Job Spec wants it."""
    if not isinstance(value, str) or re.fullmatch(KEY_PATTERN, value) is None or value.endswith("\n"):
        problem = f"{value!r} is not a key name: a letter or digit first, then letters, digits and . _ : - only."
        raise CallInvalid("keys", problem)
    return name("keys", value)


def queue_delivery(delivery: str) -> None:
    """Refuse delivery over HTTP in a project without the app that workers fetch from."""
    if delivery == Delivery.HTTP and not registered().serves_http:
        raise CallInvalid("delivery", HTTP_MISSING)


def queue_weight(weight: int, delivery: str) -> None:
    """Refuse a weight out of bounds, and one for a queue that Celery workers do not take from PostgreSQL."""
    if whole("weight", weight, 1, MOST_WEIGHT) != 1 and delivery != Delivery.DIRECT:
        raise CallInvalid(
            "weight",
            f"{weight!r} has an effect with direct delivery only: otherwise the broker, or the worker that fetches, "
            f"chooses the queue. Set weight to 1, or delivery to {Delivery.DIRECT.value}.",
        )


def whole(
    field: str, value: object, least: int, most: int, *, remedy: str = "", error: type[FieldInvalid] = CallInvalid
) -> int:
    """Return a whole number within bounds. Raises `error`, with what else could be given or done."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise error(field, f"{value!r} must be a whole number from {least} to {most}{remedy}.")
    return value


def sequence(field: str, value: object) -> list[Any]:
    """Return a list; None is an empty one."""
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        raise CallInvalid(field, f"{type(value).__name__} must be a list; for one argument give [argument].")
    return list(value)


def mapping(field: str, value: object) -> Mapping[str, Any] | None:
    """Return a mapping, or None."""
    if value is not None and not isinstance(value, Mapping):
        raise CallInvalid(field, f"{type(value).__name__} must be a mapping of names to values.")
    return value


def moment(field: str, value: object, *, error: type[FieldInvalid] = CallInvalid) -> datetime | None:
    """Return a time in UTC, or None: from a datetime with a zone, or from what has one (an arrow). Raises `error`."""
    at = getattr(value, "datetime", value)
    if at is None:
        return None
    if not isinstance(at, datetime):
        raise error(field, f"{value!r} must be a datetime with a time zone.")
    if at.utcoffset() is None:
        remedy = "use datetime.now(timezone.utc), or django.utils.timezone.now() where USE_TZ is True."
        raise error(field, f"{value!r} is naive, which is ambiguous; {remedy}")
    if not EARLIEST <= at <= LATEST:
        remedy = f"give a time from {EARLIEST.date()} to {LATEST.date()}."
        raise error(field, f"{at.isoformat()} is past the calendar; {remedy}")
    # PostgreSQL knows no zone further off than 16 hours.
    return at.astimezone(UTC)


def json_text(field: str, value: object, *, has_celerys: bool = False) -> str:
    """Return a value as JSON that jsonb can hold; the error names the path of what can't be held.

    has_celerys: it may hold what Celery's own JSON holds, too, such as a date, and is written as Celery writes it.
    """
    _check_json(field, value, _DEEPEST, _ENCODERS[has_celerys])
    return _ENCODERS[has_celerys].encode(value)


def plain(value: Any) -> Any:
    """Return a value with what JSON has in place of its mappings, sequences and names that are numbers.

    Signatures are mappings, too; Celery's JSON writes them so.
    """
    match value:
        case dict():
            return {_json_name(name): plain(item) for name, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
    return value


def _json_name(name: Any) -> Any:
    return next(iter(json.loads(json.dumps({name: 0})))) if name is None or isinstance(name, int | float) else name


def from_json(value: Any) -> Any:
    """Return arguments as the worker gets them: what Celery's own JSON marks as a type of its own is of that type."""
    match value:
        case {"__type__": str(), "__value__": _, **rest} if not rest:
            try:
                return celery_json.object_hook(value)
            except (TypeError, ValueError, ArithmeticError):
                # No type that is known here; Celery's worker decides.
                return value
        case dict():
            return {name: from_json(item) for name, item in value.items()}
        case list():
            return [from_json(item) for item in value]
    return value


def _check_json(path: str, value: object, depth: int, encoder: json.JSONEncoder) -> None:  # noqa: C901, PLR0912 -- one case a kind of value
    if depth == 0:
        raise CallInvalid(path, f"nested deeper than {_DEEPEST} levels.")
    match value:
        case None | bool():
            pass
        case int():
            if value.bit_length() > _LONGEST_INTEGER:
                raise CallInvalid(path, "is too long a number; send it as a text.")
        case float():
            if not math.isfinite(value):
                raise CallInvalid(path, f"{value} is not JSON; give a finite number or None.")
        case str():
            if not _is_storable(value):
                raise CallInvalid(path, "holds a NUL or a lone surrogate, which PostgreSQL can't store.")
        case list() | tuple():
            for index, item in enumerate(value):
                _check_json(f"{path}[{index}]", item, depth - 1, encoder)
        case dict():
            _check_names(path, value)
            for key, item in value.items():
                _check_json(f"{path}.{key}", item, depth - 1, encoder)
        case _:
            try:
                written = encoder.default(value)
            except TypeError:
                kind = type(value).__name__
                raise CallInvalid(path, f"{kind} is not JSON; send its id or a text, such as str(value).") from None
            _check_json(path, written, depth - 1, encoder)


def _check_names(path: str, value: dict[Any, Any]) -> None:
    for key in value:
        if not isinstance(key, str):
            raise CallInvalid(path, f"the name {key!r} is not a text; JSON has only texts as names.")
        if not _is_storable(key):
            raise CallInvalid(path, f"the name {key!r} holds a NUL or a lone surrogate.")


def _is_storable(text: str) -> bool:
    """Whether PostgreSQL can store the text: UTF-8 without NUL."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False
