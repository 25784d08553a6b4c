"""The event log."""

from typing import ClassVar

from django.db import models
from django.db.models import Q

from dispatcher.models.record import Record


class EventLogEntry(Record):
    """An event of a limit or a queue, which no other row records; written if the event log is enabled."""

    kind = models.CharField(max_length=64, help_text="Such as rate_limit.exceeded.")
    queue = models.CharField(max_length=255, null=True)  # noqa: DJ001 -- absent is not a text
    call_id = models.UUIDField(null=True, help_text="The job_id of its data, for its index.")
    data = models.JSONField()
    at = models.DateTimeField()

    class Meta:
        verbose_name_plural = "event log entries"
        indexes: ClassVar = [
            models.Index(name="entry_at", fields=["at"]),
            models.Index(name="entry_kind", fields=["kind", "at"]),
            models.Index(name="entry_call", fields=["call_id"], condition=Q(call_id__isnull=False)),
            models.Index(
                name="entry_pressure",
                fields=["queue", "at"],
                condition=Q(kind__in=["backpressure.warning", "backpressure.cleared"]),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.at}"
