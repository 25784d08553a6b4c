"""References: delete what ended although rows of the project point to it, as Django's `on_delete` says of each.

What is still referenced after that is kept, and stops the deletion of nothing else.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
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


def of_project(model: type[Model]) -> list[ForeignKey[Any, Any]]:
    """Return the foreign keys of the project's models to one of the dispatcher's."""
    fields: list[ForeignKey[Any, Any]] = [each.field for each in get_candidate_relations_to_delete(model._meta)]  # type: ignore[attr-defined]
    return [field for field in fields if not field.model.__module__.startswith("dispatcher.")]


def delete_before(rows: "QuerySet[Any]", field: str, before: datetime, *, until: float, kept: Kept) -> int:
    """Delete rows whose time in `field` is before this one, the oldest first, with what cascades; return how many.

    until: the monotonic time at which it stops. kept: counts those that are still referenced.
    """
    deleted = 0
    last = Q()
    old = rows.filter(**{f"{field}__lt": before}).order_by(field, "pk")
    while monotonic() < until and (batch := list(old.filter(last).values_list("pk", field)[:_BATCH])):
        last_id, last_at = batch[-1]
        last = Q(**{f"{field}__gt": last_at}) | Q(**{field: last_at, "pk__gt": last_id})
        free = _unprotected(rows, [row_id for row_id, _ in batch], kept)
        deleted += delete_by_halves(free, lambda ids: _delete(old, ids), kept)
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


def _unprotected(rows: "QuerySet[Any]", ids: list[Any], kept: Kept) -> list[Any]:
    """Return the rows to which no field points that keeps them: a look for all is cheaper than a try for each."""
    left = dict.fromkeys(ids)
    for field in of_project(rows.model):
        if field.remote_field.on_delete not in _KEEPS:
            continue
        pointing = field.model._base_manager.using(rows.db).filter(**{f"{field.name}__pk__in": list(left)})  # noqa: SLF001
        for row_id in pointing.values_list(f"{field.name}__pk", flat=True).distinct():
            del left[row_id]
            kept[str(field)] += 1
    return list(left)


def _delete(rows: "QuerySet[Any]", ids: Sequence[Any]) -> int:
    with sql.atomic():
        # Those that have changed since, or that a transaction holds, are left to the next run.
        locked = rows.filter(pk__in=ids).select_for_update(skip_locked=True, of=("self",)).values_list("pk", flat=True)
        _, counts = rows.model.objects.using(rows.db).filter(pk__in=list(locked)).delete()
        # Django's foreign keys are checked at the commit, which would be too late to delete the others.
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
