"""Pages of tables with millions of rows: nothing is counted to its end."""

from collections.abc import Iterator
from typing import Final
from uuid import UUID

from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.utils.functional import cached_property

MANY: Final = 10_000
"""How far rows are counted, and how far back pages go."""
_BATCH: Final = 1_000


class CappedPaginator(Paginator):  # type: ignore[type-arg]
    """Counts up to MANY rows; what lies behind is found by filters and search."""

    @cached_property
    def count(self) -> int:
        """Return the number of rows, or MANY if there are more."""
        rows: QuerySet[Model] = self.object_list  # type: ignore[assignment]
        return rows.order_by()[:MANY].count()


def batches(calls: QuerySet[Model]) -> Iterator[list[UUID]]:
    """Yield the ids of all these calls, batch by batch, from the newest to the oldest at this moment."""
    before: UUID | None = None
    while True:
        rows = calls.order_by("-pk") if before is None else calls.order_by("-pk").filter(pk__lt=before)
        ids: list[UUID] = list(rows.values_list("pk", flat=True)[:_BATCH])
        if not ids:
            return
        yield ids
        before = ids[-1]
