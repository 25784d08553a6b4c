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

from django.db.models import QuerySet

from dispatcher import lanes, sql
from dispatcher.conf import conf
from dispatcher.lifecycle.retention import old
from dispatcher.models import Lane, LaneSite, RateLimitKey

BUDGET = timedelta(minutes=1)
"""How long one cleanup may look for unused lanes, and again for unused keys."""
_BATCH = 500
"""How many are removed in one transaction, at the most: a sender to one of them waits for its end."""
_KEYS_LOOKED_AT = 10_000
"""How many keys are looked for at once: each look reads all lanes."""


@dataclass(frozen=True, kw_only=True)
class _Found:
    id: int
    name: str | None = None
    """Of a key."""


def remove_lanes(*, now: datetime | None = None) -> int:
    """Remove lanes without calls, also ended ones, of which nothing has started for long; return how many."""
    ids = Lane.objects.order_by("id").values_list("id", flat=True)
    return _remove(Lane, _slices(lambda after: list(ids.filter(id__gt=after)[:_BATCH])), now)


def remove_keys(*, now: datetime | None = None) -> int:
    """Remove keys that a template has made and still would make, that no lane spends, and that no person has changed.

    Return how many.
    """
    templated = RateLimitKey.objects.filter(is_from_template=True).order_by("id")
    ids = templated.values_list("id", flat=True)
    return _remove(RateLimitKey, _slices(lambda after: list(ids.filter(id__gt=after)[:_KEYS_LOOKED_AT])), now)


def _slices(following: Callable[[int], list[int]]) -> Iterator[list[int]]:
    """Give the ids slice by slice, for as long as the budget lasts."""
    stop_at = monotonic() + BUDGET.total_seconds()
    last = 0
    while monotonic() < stop_at and (ids := following(last)):
        yield ids
        last = ids[-1]


def _remove(model: type[Lane | RateLimitKey], slices: Iterator[list[int]], now: datetime | None) -> int:
    settings = conf()
    if settings.unused_retention is None:
        return 0
    look = partial(_look, model, {"unused": settings.unused_retention, "margin": settings.margin, "now": now})
    removed, kept = 0, old.Kept()
    for ids in slices:
        unused = look(ids)
        for first in range(0, len(unused), _BATCH):
            batch = unused[first : first + _BATCH]
            removed += old.delete_by_halves(batch, partial(_remove_batch, model, look), kept)
    old.report(kept, "lanes" if model is Lane else "keys")
    return removed


def _look(model: type[Lane | RateLimitKey], params: dict[str, Any], ids: Sequence[int]) -> list[int]:
    statement = "unused_lanes" if model is Lane else "unused_keys"
    with sql.together():
        asked = sql.ask(statement, _Found, {"ids": list(ids), **params})
    return [row.id for row in asked.rows() if row.name is None or lanes.is_from_template(row.name)]


def _remove_batch(
    model: type[Lane | RateLimitKey], look: Callable[[Sequence[int]], list[int]], found: Sequence[int]
) -> int:
    with sql.own_transaction():
        locked = _locked(model.objects.filter(pk__in=found))
        if model is Lane:
            # Their places, too: a trip may hold one.
            locked = _locked(LaneSite.objects.filter(pk__in=locked))
        # Under the locks, and with a new snapshot: who sent before them has committed.
        unused = model.objects.filter(pk__in=look(locked))
        deleted = unused._raw_delete(unused.db)  # noqa: SLF001 -- a constraint of the project decides
        # It is checked here, and not at the commit.
        sql.connection().check_constraints()
    return int(deleted or 0)


def _locked(rows: QuerySet[Any]) -> list[int]:
    """Lock rows against senders and trips; what one of these has locked is skipped."""
    return list(rows.order_by("pk").select_for_update(skip_locked=True).values_list("pk", flat=True))
