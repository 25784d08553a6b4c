"""Models of the HTTP API: jobs beside calls, tokens, workflows, subscriptions, and workers that fetch."""

from typing import ClassVar, Final

import uuid_utils.compat as uuid7
from django.apps import apps
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from dispatcher.errors import ConfigurationError
from dispatcher.models import CallQueue
from dispatcher.models.record import DateTimeField, Record

if not apps.is_installed("dispatcher.ojs"):
    raise ConfigurationError('dispatcher.ojs is an app: add "dispatcher.ojs" to INSTALLED_APPS.')  # noqa: TRY003 -- the remedy


class Job(Record):
    """What only the HTTP API stores of a call: a row beside it, deleted with it; a plain call has none."""

    call = models.OneToOneField(
        CallQueue, primary_key=True, on_delete=models.DO_NOTHING, db_constraint=False, related_name="job"
    )
    """The migration adds the foreign key: the database deletes the row with the call."""
    timeout = models.DurationField(null=True)
    """Maximum duration of one attempt, if workers fetch it."""
    visibility = models.DurationField(null=True)
    """The lease of a fetched call without a heartbeat."""
    unique_key = models.CharField(max_length=64, null=True)  # noqa: DJ001 -- absent is not a text
    """Calls with the same key run one at a time."""
    envelope = models.JSONField(null=True)
    """Fields of the job that have no column."""
    progress = models.JSONField(null=True)
    """What its worker reported last: progress from 0 to 1, message, data."""
    created_at = DateTimeField()
    """When the call was sent."""
    outcome = models.CharField(max_length=16, default="open", db_default="open")
    """open, or how a call with a unique key, or of a workflow, has ended: set by a trigger."""
    ended_at = DateTimeField(null=True)
    """When it ended; set by the same trigger."""

    class Meta:
        indexes: ClassVar = [
            models.Index(
                name="job_unique", fields=["unique_key", "outcome", "created_at"], condition=Q(unique_key__isnull=False)
            )
        ]

    def __str__(self) -> str:
        return str(self.call_id)


class ApiToken(Record):
    """A token of the HTTP API and its scopes; the token itself is shown once, and only its hash is stored."""

    name = models.CharField(max_length=200, unique=True, help_text="The key token:NAME has its own limits.")
    digest = models.CharField(max_length=64, unique=True, editable=False)
    scopes = ArrayField(
        models.CharField(max_length=255),
        help_text="Scopes: send, fetch, read, admin; send:mail* for some queues only, with key:smtp* for some keys.",
    )
    is_active = models.BooleanField("active", default=True)
    expires_at = DateTimeField(null=True, blank=True)
    created_at = DateTimeField(db_default=Now(), editable=False)

    class Meta:
        verbose_name = "API token"

    def __str__(self) -> str:
        return self.name


class Workflow(Record):
    """Jobs that belong together: a chain, a group, a batch or a graph (ojs-workflows)."""

    id = models.UUIDField(primary_key=True, default=uuid7.uuid7, editable=False)
    name = models.CharField(max_length=255, blank=True)
    kind = models.CharField(max_length=16)
    """chain, group, batch or graph."""
    state = models.CharField(max_length=16, default="running")
    """running, completed, failed or cancelled."""
    plan = models.JSONField()
    """Its parts, in order: jobs or workflows."""
    callbacks = models.JSONField(default=dict)
    """The callbacks of a batch, started when all parts have ended."""
    results = models.JSONField(default=dict)
    """Results of earlier parts that it was started with."""
    failed_part = models.PositiveIntegerField(null=True)
    parent = models.ForeignKey("self", null=True, on_delete=models.CASCADE, related_name="children")
    created_at = DateTimeField(db_default=Now(), editable=False)
    ended_at = DateTimeField(null=True)
    look_at = DateTimeField(null=True, editable=False)
    """When it is advanced although no part has ended: its queue was full, or an error came."""

    class Meta:
        indexes: ClassVar = [
            models.Index(name="workflow_look", fields=["look_at"], condition=Q(look_at__isnull=False)),
            models.Index(name="workflow_running", fields=["id"], condition=Q(state="running")),
            models.Index(name="workflow_made", fields=["created_at"]),
            models.Index(name="workflow_ended", fields=["ended_at"], condition=Q(ended_at__isnull=False)),
            # Workflows inside others are deleted with these.
            models.Index(
                name="workflow_root_ended",
                fields=["ended_at"],
                condition=Q(parent__isnull=True, ended_at__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return self.name or str(self.id)


class Part(Record):
    """A started part of a workflow: a call or a workflow. Its outcome outlives its call."""

    workflow = models.ForeignKey(Workflow, on_delete=models.CASCADE, related_name="parts")
    role = models.CharField(max_length=16)
    """step, or the name of a callback."""
    place = models.PositiveIntegerField()
    call = models.UUIDField(null=True)
    child = models.OneToOneField(Workflow, null=True, on_delete=models.CASCADE, related_name="part")
    outcome = models.CharField(max_length=16, default="open")
    """open, completed, failed or cancelled."""
    ended_at = DateTimeField(null=True)
    """Since when its call or workflow has ended, or is gone; a trigger sets it for a call."""
    result = models.JSONField(null=True)
    error = models.JSONField(null=True)
    """Why it failed, if its call has no error: it was not sent, or was deleted."""

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(name="part_is_started_once", fields=["workflow", "role", "place"])
        ]
        indexes: ClassVar = [
            models.Index(name="part_call", fields=["call"], condition=Q(call__isnull=False)),
            models.Index(name="part_open", fields=["workflow", "id"], condition=Q(outcome="open")),
            models.Index(name="part_news", fields=["ended_at"], condition=Q(outcome="open", ended_at__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.role} {self.place} of {self.workflow_id}"


class Subscription(Record):
    """A webhook: where events are posted (Open Job Spec, ojs-webhooks)."""

    id = models.UUIDField(primary_key=True, default=uuid7.uuid7, editable=False)
    url = models.URLField(max_length=2_000)
    events = ArrayField(models.CharField(max_length=64))
    """Types, such as job.completed, job.* or *."""
    secret = models.CharField(max_length=255)
    """The key of the signatures of posts."""
    is_active = models.BooleanField("active", default=True)
    failing_since = DateTimeField(null=True, editable=False)
    """Since when no post has succeeded; after three days it is switched off."""
    delivered_cursor = models.CharField(max_length=64, default="")
    """Events up to here were delivered."""
    created_at = DateTimeField(db_default=Now(), editable=False)

    def __str__(self) -> str:
        return self.url


class PullWorker(Record):
    """A named worker that fetches calls over HTTP."""

    id = models.UUIDField(primary_key=True, editable=False)
    name = models.CharField(max_length=255, unique=True, help_text="Its worker_id.")
    queues = ArrayField(models.CharField(max_length=255), default=list, help_text="The queues of its last fetch.")
    state = models.CharField(
        max_length=16, default="running", db_default="running", help_text="Its last reported state."
    )
    directive = models.CharField(
        max_length=16, default="running", db_default="running", help_text="The response to its next heartbeat."
    )
    started_at = DateTimeField(db_default=Now())
    seen_at = DateTimeField(db_default=Now())

    class Meta:
        verbose_name = "fetching worker"

    def __str__(self) -> str:
        return self.name


class Pool(Record):
    """Queues that workers fetch from together, and the order in which a fetch reads them."""

    name = models.CharField(max_length=255, primary_key=True)
    strategy = models.CharField(max_length=16, default="round-robin")
    """strict, round-robin or weighted."""
    weights = models.JSONField(default=dict)
    """Its queues with their weights: how often each comes first."""
    created_at = DateTimeField(db_default=Now(), editable=False)

    def __str__(self) -> str:
        return self.name


class Cron(Record):
    """A call that is sent on a schedule (Open Job Spec, ojs-cron)."""

    name = models.CharField(max_length=190, primary_key=True)
    expression = models.CharField(max_length=255)
    """Five fields, or a word such as @daily."""
    timezone = models.CharField(max_length=63)
    overlap = models.CharField(max_length=16, default="skip")
    """While its previous call runs: skip, allow, cancel_previous, enqueue."""
    is_enabled = models.BooleanField("enabled", default=True)
    job = models.JSONField()
    """What it sends, as its sender gave it."""
    created_at = DateTimeField(db_default=Now(), editable=False)
    last_run_at = DateTimeField(null=True)
    next_run_at = DateTimeField(null=True)
    """None while it is disabled, or if its time never comes."""
    runs = models.PositiveIntegerField(default=0)

    def __str__(self) -> str:
        return self.name


LIMIT_KINDS: Final = ["rate_limit.exceeded", "rate_limit.released"]
"""What each wait for a limit writes into the event log."""


class EventLogEntry(Record):
    """An event of a limit or a queue, which no other row records; written if the event log is enabled."""

    kind = models.CharField(max_length=64, help_text="Such as rate_limit.exceeded.")
    queue = models.CharField(max_length=255, null=True)  # noqa: DJ001 -- absent is not a text
    call_id = models.UUIDField(null=True, help_text="The job_id of its data, for its index.")
    data = models.JSONField()
    at = DateTimeField()

    class Meta:
        db_table = "dispatcher_eventlogentry"
        verbose_name_plural = "event log entries"
        indexes: ClassVar = [
            models.Index(name="entry_at", fields=["at"]),
            # What limits do is most of the log: entry_at finds it.
            models.Index(name="entry_kind", fields=["kind", "at"], condition=~Q(kind__in=LIMIT_KINDS)),
            models.Index(name="entry_call", fields=["call_id"], condition=Q(call_id__isnull=False)),
            models.Index(
                name="entry_pressure",
                fields=["queue", "at"],
                condition=Q(kind__in=["backpressure.warning", "backpressure.cleared"]),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.at}"
