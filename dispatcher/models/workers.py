"""The tables of workers: Celery's, those that fetch over HTTP, when leases were judged, when periodic tasks ran."""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now


class Worker(models.Model):
    """A Celery worker that has said what it is; it says again with every heartbeat that it lives."""

    id = models.UUIDField(primary_key=True, editable=False)
    name = models.CharField(max_length=255, help_text="Its Celery name, such as celery@host.")
    host = models.CharField(max_length=255)
    pid = models.PositiveIntegerField()
    pool = models.CharField(max_length=64)
    processes = models.PositiveIntegerField(help_text="How many calls it runs at once.")
    queues = ArrayField(models.CharField(max_length=255), help_text="The Celery queues that it takes messages of.")
    tasks = ArrayField(
        models.CharField(max_length=255), null=True, help_text="The names of the tasks that it knows, in order."
    )
    started_at = models.DateTimeField()
    seen_at = models.DateTimeField(help_text="Its latest heartbeat.")
    serves_until = models.DateTimeField(help_text="Its queues count as served until then.")
    stopped_at = models.DateTimeField(null=True, help_text="It takes no more messages since then.")
    lost_at = models.DateTimeField(null=True, help_text="It fell silent, and what it held was recovered.")

    def __str__(self) -> str:
        """Return its name and process."""
        return f"{self.name} ({self.pid})"


class Feed(models.Model):
    """The feed of a Celery worker, which takes calls of direct queues from PostgreSQL."""

    worker_id = models.UUIDField(primary_key=True, editable=False)
    queues = ArrayField(models.CharField(max_length=255), help_text="The queues whose calls it takes directly.")
    idle_at = models.DateTimeField(
        null=True, help_text="Since when it has free processes and waits; null: a call need not wake it."
    )

    def __str__(self) -> str:
        """Return its worker."""
        return f"{self.worker_id}"


class PullWorker(models.Model):
    """A worker that fetches calls over HTTP, as far as it has named itself."""

    id = models.UUIDField(primary_key=True, editable=False)
    name = models.CharField(max_length=255, unique=True, help_text="The worker_id that it gives.")
    queues = ArrayField(models.CharField(max_length=255), default=list, help_text="What it fetched of last.")
    state = models.CharField(max_length=16, default="running", db_default="running", help_text="As it told last.")
    directive = models.CharField(
        max_length=16, default="running", db_default="running", help_text="What its next heartbeat is answered with."
    )
    started_at = models.DateTimeField(db_default=Now())
    seen_at = models.DateTimeField(db_default=Now())

    class Meta:
        verbose_name = "fetching worker"

    def __str__(self) -> str:
        """Return its name."""
        return self.name


class LeaseWatch(models.Model):
    """When recovery last looked at the leases, and since when it has looked without a gap; one row.

    Behind a gap the database may have been away, and with it the heartbeats: their leases are not to blame.
    """

    looked_at = models.DateTimeField()
    since = models.DateTimeField()

    def __str__(self) -> str:
        """Return when it last looked."""
        return f"{self.looked_at}"


class ResultCursor(models.Model):
    """Up to which call Celery's backend has the results of calls that ended in the database alone; one row."""

    finished_at = models.DateTimeField()
    call_id = models.UUIDField()

    def __str__(self) -> str:
        """Return when the last of them ended."""
        return f"{self.finished_at}"


class PeriodicRun(models.Model):
    """When a periodic task of the dispenser last started; one row per task, written every few seconds at the most."""

    name = models.CharField(max_length=64, primary_key=True, help_text="The task, such as dispatcher.tick.")
    created_at = models.DateTimeField(db_default=Now())
    ran_at = models.DateTimeField(null=True, help_text="When it last started; null: never.")
    ran_by = models.UUIDField(
        null=True, help_text="The worker that ran it by itself; null: it was asked for, by beat say."
    )

    def __str__(self) -> str:
        """Return its name and when it last started."""
        return f"{self.name}: {self.ran_at}"
