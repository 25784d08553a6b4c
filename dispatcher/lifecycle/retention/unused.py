"""Unused: remove lanes without calls, and keys that templates have made for them, safely against who sends meanwhile.

A sender holds its lane FOR KEY SHARE until its commit, and who makes a lane holds its keys so. The removal skips what
is held, locks the rest FOR UPDATE, and looks again under these locks. A sender that comes then waits for that short
transaction, finds no lane, and makes key and lane again.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from time import monotonic
from typing import Any

from dispatcher import lanes, sql
from dispatcher.conf import conf
from dispatcher.lifecycle.retention import old
from dispatcher.models import Lane, RateLimitKey

BUDGET = timedelta(minutes=1)
"""How long one cleanup may look for unused lanes, and again for unused keys."""
_BATCH = 500
"""How many are removed in one transaction, at the most: a sender to one of them waits for its end."""
_KEYS_LOOKED_AT = 10_000
"""How many keys are looked for at once: each look reads all lanes."""


@dataclass(frozen=True, kw_only=True)
class _Statements:
    what: str
    look: str
    lock: str
    delete: str


@dataclass(frozen=True, kw_only=True)
class _Found:
    id: int
    name: str | None = None
    """Of a key."""


_LANES = _Statements(what="lanes", look="unused_lanes", lock="lock_unused_lanes", delete="delete_lanes")
_KEYS = _Statements(what="keys", look="unused_keys", lock="lock_unused_keys", delete="delete_keys")


def remove_lanes(*, now: datetime | None = None) -> int:
    """Remove lanes without calls, also ended ones, of which nothing has started for long; return how many."""
    ids = Lane.objects.using(conf().database).order_by("id").values_list("id", flat=True)
    return _remove(_LANES, _slices(lambda after: list(ids.filter(id__gt=after)[:_BATCH])), now)


def remove_keys(*, now: datetime | None = None) -> int:
    """Remove keys that a template has made and still would make, that no lane spends, and that no person has changed.

    Return how many.
    """
    templated = RateLimitKey.objects.using(conf().database).filter(is_from_template=True).order_by("id")
    ids = templated.values_list("id", flat=True)
    return _remove(_KEYS, _slices(lambda after: list(ids.filter(id__gt=after)[:_KEYS_LOOKED_AT])), now)


def _slices(following: Callable[[int], list[int]]) -> Iterator[list[int]]:
    """Give the ids slice by slice, for as long as the budget lasts."""
    stop_at = monotonic() + BUDGET.total_seconds()
    last = 0
    while monotonic() < stop_at and (ids := following(last)):
        yield ids
        last = ids[-1]


def _remove(statements: _Statements, slices: Iterator[list[int]], now: datetime | None) -> int:
    settings = conf()
    if settings.unused_retention is None:
        return 0
    params = {"unused": settings.unused_retention, "margin": settings.margin, "now": now}
    removed, kept = 0, old.Kept()
    for ids in slices:
        unused = _look(statements, ids, params)
        for first in range(0, len(unused), _BATCH):
            batch = unused[first : first + _BATCH]
            removed += old.delete_by_halves(batch, partial(_remove_batch, statements, params), kept)
    old.report(kept, statements.what)
    return removed


def _look(statements: _Statements, ids: list[int], params: dict[str, Any]) -> list[int]:
    with sql.together():
        asked = sql.ask(statements.look, _Found, {"ids": ids, **params})
    return [row.id for row in asked.rows() if row.name is None or lanes.is_from_template(row.name)]


def _remove_batch(statements: _Statements, params: dict[str, Any], found: Sequence[int]) -> int:
    with sql.own_transaction():
        locked = [row.id for row in sql.fetch(statements.lock, _Found, {"ids": list(found)})]
        # Under the locks, and with a new snapshot: who sent before them has committed.
        unused = _look(statements, locked, params)
        sql.ask(statements.delete, object, {"ids": unused})
        # A foreign key of the project is checked here, and not at the commit.
        sql.connection().check_constraints()
    return len(unused)
