"""Workers in the admin: who lives, who stopped, who fell silent, and which queues they serve."""

from typing import TYPE_CHECKING

from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from dispatcher.admin.paging import BoundedList
from dispatcher.models import Worker

if TYPE_CHECKING:
    _Admin = admin.ModelAdmin[Worker]
else:
    _Admin = admin.ModelAdmin

_COLOURS = {"live": "#2e7d32", "stopped": "#757575", "lost": "#c62828"}


@admin.register(Worker)
class WorkerAdmin(BoundedList, _Admin):
    """Workers say themselves what they are: here they are read."""

    list_display = ("name", "standing", "queues", "pool", "processes", "host", "pid", "started_at", "seen_at")
    list_filter = ("pool",)
    search_fields = ("name", "host")
    ordering = ("-seen_at", "-id")

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Refuse: a worker registers by its heartbeat."""
        del request
        return False

    def has_change_permission(self, request: HttpRequest, obj: Worker | None = None) -> bool:
        """Refuse: nothing is edited."""
        del request, obj
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Worker | None = None) -> bool:
        """Refuse: retention deletes those that are long gone."""
        del request, obj
        return False

    @admin.display(description="state")
    def standing(self, worker: Worker) -> SafeString:
        """Return whether it lives, as a coloured word."""
        word = "lost" if worker.lost_at else "stopped" if worker.stopped_at else "live"
        style = f"background:{_COLOURS[word]};color:#fff;border-radius:3px;padding:1px 7px"
        return format_html('<span style="{}">{}</span>', style, word.capitalize())
