"""The journal in the admin: what limits and queues went through, the latest first."""

from typing import TYPE_CHECKING
from uuid import UUID

from django.contrib import admin
from django.db.models import QuerySet
from django.db.models.fields.json import KT
from django.http import HttpRequest

from dispatcher.admin.paging import MANY, BoundedList
from dispatcher.event_log import KINDS
from dispatcher.models import JournalEntry

if TYPE_CHECKING:
    _Admin = admin.ModelAdmin[JournalEntry]
else:
    _Admin = admin.ModelAdmin


class KindFilter(admin.SimpleListFilter):
    """By kind, of those there can be: to look for those there are would read all of the journal."""

    title = "kind"
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:
        """Offer every kind."""
        del request, model_admin
        return [(kind, kind) for kind in KINDS]

    def queryset(self, request: HttpRequest, queryset: QuerySet[JournalEntry]) -> QuerySet[JournalEntry]:
        """Filter by the chosen kind."""
        del request
        value = self.value()
        return queryset.filter(kind=value) if value else queryset


@admin.register(JournalEntry)
class JournalEntryAdmin(BoundedList, _Admin):
    """Entries are written by what happens: here they are read."""

    list_display = ("at", "kind", "queue", "told")
    list_filter = (KindFilter,)
    search_fields = ("queue", "data__key")
    search_help_text = f"The id of a call; or a queue or a key, among the latest {MANY:,} entries."
    ordering = ("-at", "-id")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[JournalEntry], search_term: str
    ) -> tuple[QuerySet[JournalEntry], bool]:
        """Find by the id of a call, which has an index, or among the latest entries."""
        term = search_term.strip()
        if not term:
            return queryset, False
        try:
            # Named so that the index of jobs serves it.
            return queryset.alias(job=KT("data__job_id")).filter(job=str(UUID(term))), False
        except ValueError:
            pass
        oldest = JournalEntry.objects.order_by("-at").values_list("at", flat=True)[MANY : MANY + 1].first()
        latest = queryset if oldest is None else queryset.filter(at__gt=oldest)
        return super().get_search_results(request, latest, term)

    @admin.display(description="what it tells")
    def told(self, entry: JournalEntry) -> str:
        """Return the data in words."""
        return ", ".join(f"{name} {value}" for name, value in entry.data.items())

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Refuse: nobody writes history."""
        del request
        return False

    def has_change_permission(self, request: HttpRequest, obj: JournalEntry | None = None) -> bool:
        """Refuse: nobody changes it."""
        del request, obj
        return False

    def has_delete_permission(self, request: HttpRequest, obj: JournalEntry | None = None) -> bool:
        """Refuse: the cleanup deletes what has been kept for long enough."""
        del request, obj
        return False
