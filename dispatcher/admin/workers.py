"""Celery workers in the admin: which are alive, stopped or lost, and which queues they serve."""

from django.contrib import admin
from django.utils.safestring import SafeString

from dispatcher.admin.base import ReadOnlyAdmin, badge
from dispatcher.models import Worker

_COLOURS = {"live": "#2e7d32", "stopped": "#757575", "lost": "#c62828"}


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin):
    """Workers, registered by their heartbeats and deleted by retention: people view them."""

    list_display = ("name", "state", "queues", "pool", "processes", "host", "pid", "started_at", "seen_at")
    list_filter = ("pool",)
    search_fields = ("name", "host")
    ordering = ("-seen_at", "-id")

    @admin.display(description="state")
    def state(self, worker: Worker) -> SafeString:
        word = "lost" if worker.lost_at else "stopped" if worker.stopped_at else "live"
        return badge(word.capitalize(), _COLOURS[word])
