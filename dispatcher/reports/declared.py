"""Declared: what the settings say of each key, what the database has, and what people have changed at run time."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from dispatcher import groups, lanes, sql
from dispatcher.conf import conf
from dispatcher.history import BY_SETTINGS
from dispatcher.limits.policy import Policy, stored
from dispatcher.models import KeyChange, RateLimitKey
from dispatcher.reports.words import format_time
from dispatcher.states import Labelled

_GIVEN = ("limit", "make")
"""The verbs that store a policy."""


class Difference(Labelled):
    """How a key stands to the settings."""

    SAME = "same"
    MISSING = "missing"
    """The settings name it, and it does not exist."""
    DIFFERS = "differs"
    """The settings have changed since it was made, or written by them."""
    CHANGED = "changed"
    """It was changed at run time, or made over HTTP with other limits."""
    UNDECLARED = "undeclared"
    """It exists, and no setting says how."""


@dataclass(frozen=True, kw_only=True)
class Declared:
    """A key that exists, that the settings name, or both."""

    key: str
    declared_by: str | None
    """Its name in the settings, or the template that fits; None: nothing does."""
    settings: Policy | None
    database: Policy | None
    """Its own limits, without an override; None: it does not exist."""
    overridden_until: datetime | None
    changed: KeyChange | None = None
    """The last change of its limits, if people made it."""

    @property
    def is_templates(self) -> bool:
        """Whether a template declares it, and not its own name."""
        return self.declared_by not in (None, self.key)

    @property
    def difference(self) -> Difference:
        """How the key stands to the settings."""
        if self.settings is None:
            return Difference.UNDECLARED
        if self.database is None:
            return Difference.MISSING
        if self.settings == self.database:
            return Difference.SAME
        return Difference.DIFFERS if self.changed is None else Difference.CHANGED

    def as_json(self) -> dict[str, Any]:
        """Write it for other programs."""
        changed = self.changed
        return {
            "key": self.key,
            "state": self.difference.value,
            "declared_by": self.declared_by,
            "settings": self.settings and self.settings.as_json(),
            "database": self.database and self.database.as_json(),
            "changed": changed
            and {
                "by": changed.actor,
                "source": changed.source,
                "reason": changed.reason,
                "at": format_time(changed.at),
            },
            "override_expires_at": format_time(self.overridden_until),
        }


def declared_keys(names: Collection[str] | None = None) -> list[Declared]:
    """Return these keys, or all if None, in order of name; names that nothing knows are left out.

    A group has no limits in the settings: it is what its members are. Raises PolicyInvalid.
    """
    now = sql.now()
    rows = RateLimitKey.objects.filter(name__in=names) if names is not None else RateLimitKey.objects.all()
    found = {row.name: _found(row.name, row, now) for row in rows}
    exact = [name for name in conf().keys if not groups.is_group(name) and "*" not in name]
    found |= {name: _found(name, None, now) for name in exact if name not in found and (not names or name in names)}
    changes = _last_changes([name for name, key in found.items() if key.settings != key.database])
    return [replace(key, changed=changes.get(name)) for name, key in sorted(found.items())]


def _found(name: str, row: RateLimitKey | None, now: datetime) -> Declared:
    declared_by = None if groups.is_group(name) else lanes.declared_by(name)
    until = None if row is None else row.override_until
    return Declared(
        key=name,
        declared_by=declared_by,
        settings=None if declared_by is None else lanes.declared_policy(name),
        database=None if row is None else stored(row),
        overridden_until=until if until is not None and until > now else None,
    )


def _last_changes(names: Iterable[str]) -> dict[str, KeyChange]:
    """Return the last change of the limits of each of these keys, if it was not the settings'."""
    stores = KeyChange.objects.filter(key__in=[*names], verb__in=_GIVEN)
    last = stores.order_by("key", "-at", "-id").distinct("key")
    return {change.key: change for change in last if change.source != BY_SETTINGS}
