"""Celery workers in the admin: which are alive, stopped or lost, and which queues they serve."""

from typing import TYPE_CHECKING

from django.contrib import admin
from django.utils.html import format_html
from django.utils.safestring import SafeString

from dispatcher.admin.paging import BoundedList
from dispatcher.admin.read_only import ReadOnlyAdmin
from dispatcher.models import Worker

if TYPE_CHECKING:
    _Admin = admin.ModelAdmin[Worker]
else:
    _Admin = admin.ModelAdmin

_COLOURS = {"live": "#2e7d32", "stopped": "#757575", "lost": "#c62828"}


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin, BoundedList, _Admin):
    """Workers, registered by their heartbeats and deleted by retention: people view them."""

    list_display = ("name", "state", "queues", "pool", "processes", "host", "pid", "started_at", "seen_at")
    list_filter = ("pool",)
    search_fields = ("name", "host")
    ordering = ("-seen_at", "-id")

    @admin.display(description="state")
    def state(self, worker: Worker) -> SafeString:
        """Return the state as a coloured badge."""
        word = "lost" if worker.lost_at else "stopped" if worker.stopped_at else "live"
        style = f"background:{_COLOURS[word]};color:#fff;border-radius:3px;padding:1px 7px"
        return format_html('<span style="{}">{}</span>', style, word.capitalize())
