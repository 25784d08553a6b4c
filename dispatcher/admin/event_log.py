"""The event log in the admin, latest first."""

from django.contrib import admin
from django.db.models import QuerySet
from django.db.models.fields.json import KT
from django.http import HttpRequest

from dispatcher.admin.base import MANY, ReadOnlyAdmin
from dispatcher.event_log import KINDS
from dispatcher.messages.tickets import uuid_of
from dispatcher.models import EventLogEntry


class KindFilter(admin.SimpleListFilter):
    """Filters by kind, from the list of kinds: to find the existing ones would read the whole log."""

    title = "kind"
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:
        return [(kind, kind) for kind in KINDS]

    def queryset(self, request: HttpRequest, queryset: QuerySet[EventLogEntry]) -> QuerySet[EventLogEntry]:
        value = self.value()
        return queryset.filter(kind=value) if value else queryset


@admin.register(EventLogEntry)
class EventLogEntryAdmin(ReadOnlyAdmin):
    """Events, written by the engine and deleted by retention: people view them."""

    list_display = ("at", "kind", "queue", "details")
    list_filter = (KindFilter,)
    search_fields = ("queue", "data__key")
    search_help_text = f"The id of a call; or a queue or a key, among the latest {MANY:,} entries."
    ordering = ("-at", "-id")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[EventLogEntry], search_term: str
    ) -> tuple[QuerySet[EventLogEntry], bool]:
        """Search by the id of a call, which has an index, or among the latest entries."""
        term = search_term.strip()
        if not term:
            return queryset, False
        if (call := uuid_of(term)) is not None:
            # This expression has an index.
            return queryset.alias(job=KT("data__job_id")).filter(job=str(call)), False
        oldest = EventLogEntry.objects.order_by("-at").values_list("at", flat=True)[MANY : MANY + 1].first()
        latest = queryset if oldest is None else queryset.filter(at__gt=oldest)
        return super().get_search_results(request, latest, term)

    @admin.display(description="details")
    def details(self, entry: EventLogEntry) -> str:
        return ", ".join(f"{name} {value}" for name, value in entry.data.items())
