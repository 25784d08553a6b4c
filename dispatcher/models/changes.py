"""The history of changes of keys."""

from typing import ClassVar

from django.db import models
from django.db.models.functions import Now

from dispatcher.models.record import DateTimeField, Record


class KeyChange(Record):
    """A change of a key: only the fields that differ, before and after."""

    key = models.CharField(max_length=255, help_text="The name, because the record outlives the key.")
    verb = models.CharField(max_length=16, help_text="limit, override, end_override, pause, resume or block.")
    actor = models.CharField(max_length=255, blank=True, help_text="A user name, or token:NAME.")
    source = models.CharField(max_length=16, help_text="admin, http, python or settings.")
    reason = models.TextField(blank=True)
    before = models.JSONField()
    after = models.JSONField()
    at = DateTimeField(db_default=Now())

    class Meta:
        indexes: ClassVar = [
            models.Index(name="change_at", fields=["at"]),
            models.Index(name="change_key", fields=["key", "at"]),
        ]

    def __str__(self) -> str:
        return f"{self.verb} {self.key} {self.at}"
