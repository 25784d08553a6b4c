"""What the pages share: lists of tables with millions of rows, whose counts and pages are bounded."""

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final
from uuid import UUID

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ORDER_VAR, ChangeList
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.db.models.expressions import Combinable
from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.safestring import SafeString

MANY: Final = 10_000
"""The limit of counts and of pages."""
_BATCH: Final = 1_000


class CappedPaginator(Paginator):  # type: ignore[type-arg]
    """Counts up to MANY rows; filters and search find the others."""

    @cached_property
    def count(self) -> int:
        """Return the number of rows, at most MANY."""
        rows: QuerySet[Model] = self.object_list  # type: ignore[assignment]
        return rows.order_by()[:MANY].count()


class _IndexOrder(ChangeList):
    """A list in the order of its ModelAdmin, whatever the URL asks for."""

    def get_queryset(self, request: HttpRequest, exclude_parameters: list[str | None] | None = None) -> QuerySet[Model]:
        """Return the rows that the filters select; none has NUL, which PostgreSQL refuses to compare with."""
        if "%00" in request.META["QUERY_STRING"]:
            raise IncorrectLookupParameters
        return super().get_queryset(request, exclude_parameters)

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Model]) -> list[str | Combinable]:
        """Return the order of the ModelAdmin."""
        self.params.pop(ORDER_VAR, None)
        return super().get_ordering(request, queryset)


class BoundedAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """A ModelAdmin whose list costs the same for any number of rows.

    Columns are not sortable: each would need an index, and another with each filter.
    """

    paginator = CappedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    sortable_by = ()
    list_per_page = 50

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return _IndexOrder

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return the row with this id; none has NUL in it."""
        return None if "\0" in object_id else super().get_object(request, object_id, from_field)


class ReadOnlyAdmin(BoundedAdmin):
    """A ModelAdmin that adds, changes and deletes nothing; its actions have permissions of their own."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


def badge(label: str, colour: str) -> SafeString:
    """Return a label on a colour."""
    style = f"background:{colour};color:#fff;border-radius:3px;padding:1px 7px"
    return format_html('<span style="{}">{}</span>', style, label)


def batches(calls: QuerySet[Model]) -> Iterator[list[UUID]]:
    """Yield the ids of these calls in batches, newest first, as of now.

    The ids are read once: a query per batch could read and sort all that remain.
    """
    ids: Iterator[UUID] = calls.order_by("-pk").values_list("pk", flat=True).iterator(chunk_size=_BATCH)
    while batch := list(islice(ids, _BATCH)):
        yield batch
