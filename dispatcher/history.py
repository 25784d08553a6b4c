"""The history of keys: who changed what, written in the transaction of the change and kept beside the event log."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from dispatcher import sql
from dispatcher.limits.durations import format_duration
from dispatcher.models import KeyChange, RateLimitKey

_LIMITS: Final = ("concurrency", "per_worker", "rate_limit", "rate_period", "throttle_limit", "throttle_period")
_FIELDS: Final = (
    *_LIMITS,
    *("fair_by", "weight", "is_observed", "is_paused", "blocked_until", "override_until"),
    *(f"override_{name}" for name in _LIMITS),
)
"""What people change of a key."""


BY_SETTINGS: Final = "settings"
"""The source of a change that makes a key as the settings say."""


@dataclass(frozen=True, kw_only=True)
class Actor:
    """Who changes a key, by which way (`admin`, `http`, `python` or `settings`), and why."""

    name: str = ""
    source: str = "python"
    reason: str = ""


By = Actor | str
"""An actor, or only the name."""


def actor(by: By) -> Actor:
    """Return the actor."""
    return by if isinstance(by, Actor) else Actor(name=by)


@contextmanager
def recorded(verb: str, by: By, *, names: Collection[str]) -> Iterator[dict[str, dict[str, Any]]]:
    """Record what the block changes of these keys: both or neither. `before` is how they stood when it began.

    Yields what will change a little later: to be filled with the fields of a key, by its name.
    """
    with sql.atomic():
        before = _states(names)
        coming: dict[str, dict[str, Any]] = {}
        yield coming
        after = {name: {**state, **coming.get(name, {})} for name, state in _states(names).items()}
        who = actor(by)
        changes = [
            KeyChange(
                key=name,
                verb=verb,
                actor=who.name[:255],
                source=who.source,
                reason=who.reason,
                before={field: before[name][field] for field in changed},
                after={field: after[name][field] for field in changed},
            )
            for name in before
            if (changed := [field for field in _FIELDS if before[name][field] != after[name][field]])
        ]
        KeyChange.objects.bulk_create(changes)


def _states(names: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return how keys stand, by their names."""
    rows = RateLimitKey.objects.filter(name__in=names).values("name", *_FIELDS)
    return {row["name"]: {field: _as_json(row[field]) for field in _FIELDS} for row in rows}


def _as_json(value: object) -> object:
    match value:
        case timedelta():
            return format_duration(value)
        case datetime():
            return value.isoformat()
        case _:
            return value
