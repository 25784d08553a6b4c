"""The bare table that a send is compared with."""

import uuid_utils.compat as uuid7
from django.db import models
from django.db.models.functions import Now


class PlainRow(models.Model):
    """The least that a project would write to have something done later."""

    id = models.UUIDField(primary_key=True, default=uuid7.uuid7)
    task = models.CharField(max_length=255)
    args = models.JSONField()
    kwargs = models.JSONField()
    queue = models.CharField(max_length=255)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        managed = False
        db_table = "bench_plain"

    def __str__(self) -> str:
        return f"{self.task} {self.id}"
