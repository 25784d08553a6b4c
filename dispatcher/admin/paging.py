"""Lists of tables with millions of rows: nothing is counted, sorted or searched to its end."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils.functional import cached_property

MANY: Final = 10_000
"""How far rows are counted, and how far back pages go."""

_LOADED: Final = 10_000
"""How many ids are held at once while an action goes through all that a filter finds."""

if TYPE_CHECKING:
    _Rows = QuerySet[Any]
    _Paginator = Paginator[Any]
else:
    _Rows = QuerySet
    _Paginator = Paginator


class CappedPaginator(_Paginator):
    """Counts up to MANY rows; what lies behind is found by filters and search."""

    @cached_property
    def count(self) -> int:
        """Return the number of rows, or MANY if there are more."""
        rows: _Rows = self.object_list  # type: ignore[assignment]
        return rows.order_by()[:MANY].count()

    @property
    def is_capped(self) -> bool:
        """Whether there may be more rows than the count says."""
        return self.count >= MANY


class CappedChangeList(ChangeList):
    """Says how many rows were found only if something was looked for: there is no total to hold it against."""

    def get_results(self, request: HttpRequest) -> None:
        """Find the rows of the page."""
        super().get_results(request)
        if not (self.query or self.has_active_filters):
            self.full_result_count = self.result_count


class LeanChangeList(CappedChangeList):
    """Reads of each row what its model admin's `list_only` names: payloads stay where they are."""

    def get_queryset(self, request: HttpRequest, exclude_parameters: list[str | None] | None = None) -> _Rows:
        """Return the rows, without what the list does not show."""
        rows: _Rows = super().get_queryset(request, exclude_parameters)
        return rows.only(*self.model_admin.list_only)  # type: ignore[attr-defined]


def batches(rows: "QuerySet[Model]", size: int) -> Iterator[list[Any]]:
    """Yield the primary keys of all these rows in batches, from the highest down; few are held at once.

    Rows may leave the filter meanwhile, as those do that an action changes.
    """
    falling = rows.order_by("-pk").values_list("pk", flat=True)
    found = list(falling[:_LOADED])
    while found:
        for first in range(0, len(found), size):
            yield found[first : first + size]
        found = list(falling.filter(pk__lt=found[-1])[:_LOADED])


def first_id(at: datetime) -> UUID:
    """Return the lowest id of a call that is made at this time: ids begin with it (RFC 9562, UUID version 7)."""
    epoch = datetime.fromtimestamp(0, tz=at.tzinfo)
    return UUID(int=((at - epoch) // timedelta(milliseconds=1)) << 80)
