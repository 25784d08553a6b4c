"""The history of keys: who changed what, written in the transaction of the change and kept beside the event log."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
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
def recorded(
    verb: str, by: By, *, names: Collection[str], becomes: Mapping[str, Mapping[str, Any]] | None = None
) -> Iterator[None]:
    """Record what the block changes of these keys: both or neither. It has them locked: what others change is theirs.

    becomes: fields of the keys by their names, to be filled inside by who waits for no lock: nothing else is recorded.
    """
    with sql.patient(f"the rate limit key {', '.join(map(repr, names))}"):
        before = _states(names, are_locked=becomes is None)
        yield
        after = (
            _states(names)
            if becomes is None
            else {name: {**before[name], **_as_json(becomes.get(name, {}))} for name in before}
        )
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


def _states(names: Collection[str], *, are_locked: bool = False) -> dict[str, dict[str, Any]]:
    """Return how keys stand, by their names."""
    keys = RateLimitKey.objects.filter(name__in=names).order_by("id")
    rows = keys.select_for_update(no_key=True) if are_locked else keys
    return {row.pop("name"): _as_json(row) for row in rows.values("name", *_FIELDS)}


def _as_json(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _written(value) for name, value in fields.items()}


def _written(value: object) -> object:
    match value:
        case timedelta():
            return format_duration(value)
        case datetime():
            return value.astimezone(UTC).isoformat()
        case _:
            return value
