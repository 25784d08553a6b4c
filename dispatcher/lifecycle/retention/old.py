"""Old rows: delete what has been kept for long enough.

What happens to rows of the project that point to it is what their `on_delete` says. What is still referenced after that
is kept, and stops the deletion of nothing else.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from time import monotonic
from typing import Any, Final, TypeVar

from django.db import IntegrityError
from django.db.models import DO_NOTHING, PROTECT, RESTRICT, ForeignKey, Model, Q, QuerySet
from django.db.models.deletion import get_candidate_relations_to_delete

from dispatcher import sql

Id = TypeVar("Id")

logger = logging.getLogger(__name__)

Kept = Counter[str]
"""How many rows were kept, by the constraint, or the field, that points to them."""

_KEEPS: Final = (PROTECT, RESTRICT, DO_NOTHING)
_BATCH = 1_000


def delete_old(
    rows: Iterable[tuple["QuerySet[Any]", timedelta | None]],
    field: str,
    budget: timedelta,
    now: datetime | None,
    batch: int | None = None,
) -> int:
    """Delete rows whose time in `field` is longer ago than they are kept, the oldest first; return how many.

    rows: each with how long they are kept, of one model; None: for ever. budget: how long it may take; it ends after a
    batch, by default of 1,000. Logs how many are kept since rows of the project point to them.
    """
    until = monotonic() + budget.total_seconds()
    deleted, kept, what = 0, Kept(), ""
    for each, retention in rows:
        what = str(each.model._meta.verbose_name_plural)
        if retention is None:
            continue
        old = each.filter(**{f"{field}__lt": (now or sql.now()) - retention})
        for ids in _batches(old, field, batch or _BATCH):
            free = _unprotected(each, ids, kept)
            deleted += delete_by_halves(free, partial(_delete, each), kept)
            if monotonic() >= until:
                break
    report(kept, what)
    return deleted


def delete_by_halves(ids: Sequence[Id], delete: Callable[[Sequence[Id]], int], kept: Kept) -> int:
    """Delete rows in one transaction; where one is still referenced, each half by itself. Return how many went.

    delete: deletes all of these rows or none, and returns how many.
    """
    if not ids:
        return 0
    try:
        return delete(ids)
    except IntegrityError as fault:
        if len(ids) == 1:
            kept[_reference(fault)] += 1
            return 0
    half = len(ids) // 2
    return sum(delete_by_halves(part, delete, kept) for part in (ids[:half], ids[half:]))


def report(kept: Kept, what: str) -> None:
    """Log how many rows were kept, if any were."""
    if kept:
        reasons = ", ".join(f"{count} by {reference}" for reference, count in sorted(kept.items()))
        logger.warning(
            "%d %s could go but for what still points to them, and were kept: %s", kept.total(), what, reasons
        )


def _batches(rows: "QuerySet[Any]", field: str, size: int) -> Iterator[list[Any]]:
    """Give the primary keys of rows in the order of this field."""
    last = Q()
    while True:
        with sql.own_transaction(in_order=True):
            batch = list(rows.filter(last).order_by(field, "pk").values_list("pk", field)[:size])
        if not batch:
            return
        yield [row_id for row_id, _ in batch]
        last_id, last_at = batch[-1]
        # Two conditions: by the first the index is read from here on, and not over all that was deleted before.
        last = Q(**{f"{field}__gte": last_at}) & (Q(**{f"{field}__gt": last_at}) | Q(pk__gt=last_id))
        if len(batch) < size:
            return


def _unprotected(rows: "QuerySet[Any]", ids: list[Any], kept: Kept) -> list[Any]:
    """Return the rows to which no field points that keeps them: a look for all is cheaper than a try for each."""
    left = dict.fromkeys(ids)
    for field in _fields_of_project(rows.model):
        if field.remote_field.on_delete not in _KEEPS:
            continue
        pointing = field.model._base_manager.using(rows.db).filter(**{f"{field.name}__pk__in": list(left)})  # noqa: SLF001
        for row_id in pointing.values_list(f"{field.name}__pk", flat=True).distinct():
            del left[row_id]
            kept[str(field)] += 1
    return list(left)


def _fields_of_project(model: type[Model]) -> list[ForeignKey[Any, Any]]:
    fields: list[ForeignKey[Any, Any]] = [each.field for each in get_candidate_relations_to_delete(model._meta)]  # type: ignore[attr-defined]
    return [field for field in fields if not field.model.__module__.startswith("dispatcher.")]


def _delete(rows: "QuerySet[Any]", ids: Sequence[Any]) -> int:
    with sql.atomic():
        # Those that have changed since, or that a transaction holds, are left to the next run.
        locked = rows.filter(pk__in=ids).select_for_update(skip_locked=True, of=("self",)).values_list("pk", flat=True)
        _, counts = rows.model._default_manager.using(rows.db).filter(pk__in=list(locked)).delete()  # noqa: SLF001
        # A foreign key is checked here, and not at the commit, which would be too late to delete the others.
        sql.connection().check_constraints()
    deleted: int = counts.get(rows.model._meta.label, 0)
    return deleted


def _reference(fault: IntegrityError) -> str:
    """Name what points to a row: the constraint, or the models that Django found."""
    diagnosis = getattr(fault.__cause__, "diag", None)
    if diagnosis is not None:
        return f"{diagnosis.table_name}.{diagnosis.constraint_name}"
    found = getattr(fault, "protected_objects", None) or getattr(fault, "restricted_objects", None) or ()
    return " and ".join(sorted({type(each)._meta.label for each in found})) or type(fault).__name__
