"""Models of workers, of lease checks, and of runs of periodic tasks."""

from django.contrib.postgres.fields import ArrayField
from django.db import models

from dispatcher.models.record import DateTimeField, Record


class Worker(Record):
    """A Celery worker, registered and kept alive by its heartbeats."""

    id = models.UUIDField(primary_key=True, editable=False)
    name = models.CharField(max_length=255, help_text="Its Celery name, such as celery@host.")
    host = models.CharField(max_length=255)
    pid = models.PositiveIntegerField()
    pool = models.CharField(max_length=64)
    processes = models.PositiveIntegerField(help_text="How many calls it runs concurrently.")
    queues = ArrayField(models.CharField(max_length=255), help_text="The Celery queues that it consumes.")
    tasks = ArrayField(
        models.CharField(max_length=255), null=True, help_text="The names of its registered tasks, in order."
    )
    started_at = DateTimeField()
    seen_at = DateTimeField(help_text="Its latest heartbeat.")
    serves_until = DateTimeField(help_text="Its queues count as served until then.")
    stopped_at = DateTimeField(null=True, help_text="When it stopped accepting messages.")
    lost_at = DateTimeField(null=True, help_text="When its heartbeats had expired and its calls were recovered.")

    def __str__(self) -> str:
        return f"{self.name} ({self.pid})"


class Process(Record):
    """A process of a Celery worker that takes calls of direct queues, or a fetch that waits over HTTP."""

    id = models.UUIDField(primary_key=True, editable=False)
    worker_id = models.UUIDField(null=True)
    queues = ArrayField(models.CharField(max_length=255))
    idle_at = DateTimeField(null=True)
    """Since when it waits for calls; null: a call need not wake it."""


class LeaseCheck(Record):
    """When recovery last checked the leases, and since when it has done so without a gap; one row.

    In a gap the database may have been unavailable to heartbeats, too, so an expired lease proves nothing.
    """

    checked_at = DateTimeField()
    since = DateTimeField()


class ResultCursor(Record):
    """The last call whose result was copied to Celery's result backend after it ended in the database; one row."""

    finished_at = DateTimeField()
    call_id = models.UUIDField()


class PeriodicRun(Record):
    """When a periodic task of the dispenser last started, and where; one row per task."""

    name = models.CharField(max_length=64, primary_key=True)
    ran_at = DateTimeField()
    ran_by = models.UUIDField(null=True)
    """The worker that ran it by itself; null: a message, such as beat's, started it."""
    reaches_broker = models.BooleanField(default=True)
    """Whether that worker reaches a broker: otherwise it served direct queues alone."""
