"""The tables, and what keeps the rows beside the calls as these are: a foreign key, and a trigger.

Django 5.2 has no ON DELETE CASCADE of the database: with it the core deletes calls and knows nothing of this table.
The trigger costs a call that ends one look at an index; it is run where a statement writes `finished_at`. An end
whose job another transaction has locked is not written: it comes again, as where the call is locked. But people who
cancel or retry a call wait.
"""

from django.contrib.postgres.fields import ArrayField
from django.db import migrations, models
from django.db.models import CASCADE, DO_NOTHING, Index, Q, UniqueConstraint
from django.db.models.functions import Now
from uuid_utils.compat import uuid7

OF_A_CALL = """
ALTER TABLE dispatcher_ojs_job ADD CONSTRAINT job_is_of_a_call
    FOREIGN KEY (call_id) REFERENCES dispatcher_callqueue (id) ON DELETE CASCADE
"""
ENDS = """
CREATE FUNCTION dispatcher_ojs_mark_end() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM dispatcher_ojs_job
                    WHERE call_id = NEW.id AND (unique_key IS NOT NULL OR envelope ? 'workflow')) THEN
        RETURN NEW;
    END IF;
    IF NEW.finished_at IS NOT NULL AND (NEW.state <> 'cancelled' OR OLD.is_revoked)
       AND (NOT EXISTS (SELECT FROM dispatcher_ojs_job WHERE call_id = NEW.id FOR NO KEY UPDATE SKIP LOCKED)
            OR (EXISTS (SELECT FROM dispatcher_ojs_part WHERE call = NEW.id AND outcome = 'open')
                AND NOT EXISTS (SELECT FROM dispatcher_ojs_part
                                 WHERE call = NEW.id AND outcome = 'open' FOR NO KEY UPDATE SKIP LOCKED))) THEN
        RETURN NULL;
    END IF;
    UPDATE dispatcher_ojs_job
       SET ended_at = NEW.finished_at, outcome = CASE WHEN NEW.finished_at IS NULL THEN 'open' ELSE NEW.state END
     WHERE call_id = NEW.id;
    UPDATE dispatcher_ojs_part SET ended_at = NEW.finished_at WHERE call = NEW.id AND outcome = 'open';
    RETURN NEW;
END $$;
CREATE TRIGGER dispatcher_ojs_mark_end BEFORE UPDATE OF finished_at ON dispatcher_callqueue
    FOR EACH ROW WHEN (OLD.finished_at IS DISTINCT FROM NEW.finished_at) EXECUTE FUNCTION dispatcher_ojs_mark_end();
CREATE FUNCTION dispatcher_ojs_mark_gone() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE dispatcher_ojs_part SET ended_at = clock_timestamp() WHERE call = OLD.call_id AND outcome = 'open';
    RETURN NULL;
END $$;
CREATE TRIGGER dispatcher_ojs_mark_gone AFTER DELETE ON dispatcher_ojs_job
    FOR EACH ROW WHEN (OLD.unique_key IS NOT NULL OR OLD.envelope ? 'workflow')
    EXECUTE FUNCTION dispatcher_ojs_mark_gone()
"""
NO_ENDS = """
DROP TRIGGER dispatcher_ojs_mark_gone ON dispatcher_ojs_job;
DROP FUNCTION dispatcher_ojs_mark_gone();
DROP TRIGGER dispatcher_ojs_mark_end ON dispatcher_callqueue;
DROP FUNCTION dispatcher_ojs_mark_end()
"""
STORAGE = """
ALTER TABLE dispatcher_eventlogentry SET (vacuum_truncate = false, toast.vacuum_truncate = false);
ALTER TABLE dispatcher_ojs_job SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 2000, autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_insert_scale_factor = 0.05)
"""


class Migration(migrations.Migration):
    """Make everything."""

    initial = True

    dependencies = [("dispatcher", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="EventLogEntry",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("kind", models.CharField(help_text="Such as rate_limit.exceeded.", max_length=64)),
                ("queue", models.CharField(max_length=255, null=True)),
                ("call_id", models.UUIDField(help_text="The job_id of its data, for its index.", null=True)),
                ("data", models.JSONField()),
                ("at", models.DateTimeField()),
            ],
            options={
                "db_table": "dispatcher_eventlogentry",
                "verbose_name_plural": "event log entries",
                "indexes": [
                    models.Index(fields=["at"], name="entry_at"),
                    models.Index(
                        condition=models.Q(("kind__in", ["rate_limit.exceeded", "rate_limit.released"]), _negated=True),
                        fields=["kind", "at"],
                        name="entry_kind",
                    ),
                    models.Index(condition=models.Q(("call_id__isnull", False)), fields=["call_id"], name="entry_call"),
                    models.Index(
                        condition=models.Q(("kind__in", ["backpressure.warning", "backpressure.cleared"])),
                        fields=["queue", "at"],
                        name="entry_pressure",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ApiToken",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "name",
                    models.CharField(help_text="The key token:NAME has its own limits.", max_length=200, unique=True),
                ),
                ("digest", models.CharField(editable=False, max_length=64, unique=True)),
                (
                    "scopes",
                    ArrayField(
                        base_field=models.CharField(max_length=255),
                        help_text="Scopes: send, fetch, read, admin; send:mail* for some queues only, with key:smtp* for some keys.",
                        size=None,
                    ),
                ),
                ("is_active", models.BooleanField(default=True, verbose_name="active")),
                ("expires_at", models.DateTimeField(blank=True, null=True)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
            ],
            options={"verbose_name": "API token"},
        ),
        migrations.CreateModel(
            name="Cron",
            fields=[
                ("name", models.CharField(max_length=190, primary_key=True, serialize=False)),
                ("expression", models.CharField(max_length=255)),
                ("timezone", models.CharField(max_length=63)),
                ("overlap", models.CharField(default="skip", max_length=16)),
                ("is_enabled", models.BooleanField(default=True, verbose_name="enabled")),
                ("job", models.JSONField()),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("last_run_at", models.DateTimeField(null=True)),
                ("next_run_at", models.DateTimeField(null=True)),
                ("runs", models.PositiveIntegerField(default=0)),
            ],
        ),
        migrations.CreateModel(
            name="Pool",
            fields=[
                ("name", models.CharField(max_length=255, primary_key=True, serialize=False)),
                ("strategy", models.CharField(default="round-robin", max_length=16)),
                ("weights", models.JSONField(default=dict)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
            ],
        ),
        migrations.CreateModel(
            name="PullWorker",
            fields=[
                ("id", models.UUIDField(editable=False, primary_key=True, serialize=False)),
                ("name", models.CharField(help_text="Its worker_id.", max_length=255, unique=True)),
                (
                    "queues",
                    ArrayField(
                        base_field=models.CharField(max_length=255),
                        default=list,
                        help_text="The queues of its last fetch.",
                        size=None,
                    ),
                ),
                (
                    "state",
                    models.CharField(
                        db_default="running", default="running", help_text="Its last reported state.", max_length=16
                    ),
                ),
                (
                    "directive",
                    models.CharField(
                        db_default="running",
                        default="running",
                        help_text="The response to its next heartbeat.",
                        max_length=16,
                    ),
                ),
                ("started_at", models.DateTimeField(db_default=Now())),
                ("seen_at", models.DateTimeField(db_default=Now())),
            ],
            options={"verbose_name": "fetching worker"},
        ),
        migrations.CreateModel(
            name="Subscription",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                ("url", models.URLField(max_length=2000)),
                ("events", ArrayField(base_field=models.CharField(max_length=64), size=None)),
                ("secret", models.CharField(max_length=255)),
                ("is_active", models.BooleanField(default=True, verbose_name="active")),
                ("failing_since", models.DateTimeField(editable=False, null=True)),
                ("delivered_cursor", models.CharField(default="", max_length=64)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
            ],
        ),
        migrations.CreateModel(
            name="Job",
            fields=[
                (
                    "call",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=DO_NOTHING,
                        primary_key=True,
                        related_name="job",
                        serialize=False,
                        to="dispatcher.callqueue",
                    ),
                ),
                ("timeout", models.DurationField(null=True)),
                ("visibility", models.DurationField(null=True)),
                ("unique_key", models.CharField(max_length=64, null=True)),
                ("envelope", models.JSONField(null=True)),
                ("progress", models.JSONField(null=True)),
                ("created_at", models.DateTimeField()),
                ("outcome", models.CharField(db_default="open", default="open", max_length=16)),
                ("ended_at", models.DateTimeField(null=True)),
            ],
            options={
                "indexes": [
                    Index(
                        condition=Q(("unique_key__isnull", False)),
                        fields=["unique_key", "outcome", "created_at"],
                        name="job_unique",
                    )
                ]
            },
        ),
        migrations.CreateModel(
            name="Workflow",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                ("name", models.CharField(blank=True, max_length=255)),
                ("kind", models.CharField(max_length=16)),
                ("state", models.CharField(default="running", max_length=16)),
                ("plan", models.JSONField()),
                ("callbacks", models.JSONField(default=dict)),
                ("results", models.JSONField(default=dict)),
                ("failed_part", models.PositiveIntegerField(null=True)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("ended_at", models.DateTimeField(null=True)),
                ("look_at", models.DateTimeField(editable=False, null=True)),
                (
                    "parent",
                    models.ForeignKey(
                        null=True, on_delete=CASCADE, related_name="children", to="dispatcher_ojs.workflow"
                    ),
                ),
            ],
            options={
                "indexes": [
                    Index(condition=Q(("look_at__isnull", False)), fields=["look_at"], name="workflow_look"),
                    Index(condition=Q(("state", "running")), fields=["id"], name="workflow_running"),
                    Index(fields=["created_at"], name="workflow_made"),
                    Index(condition=Q(("ended_at__isnull", False)), fields=["ended_at"], name="workflow_ended"),
                    Index(
                        condition=Q(("ended_at__isnull", False), ("parent__isnull", True)),
                        fields=["ended_at"],
                        name="workflow_root_ended",
                    ),
                ]
            },
        ),
        migrations.CreateModel(
            name="Part",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("role", models.CharField(max_length=16)),
                ("place", models.PositiveIntegerField()),
                ("call", models.UUIDField(null=True)),
                ("outcome", models.CharField(default="open", max_length=16)),
                ("ended_at", models.DateTimeField(null=True)),
                ("result", models.JSONField(null=True)),
                ("error", models.JSONField(null=True)),
                (
                    "child",
                    models.OneToOneField(
                        null=True, on_delete=CASCADE, related_name="part", to="dispatcher_ojs.workflow"
                    ),
                ),
                ("workflow", models.ForeignKey(on_delete=CASCADE, related_name="parts", to="dispatcher_ojs.workflow")),
            ],
            options={
                "constraints": [UniqueConstraint(fields=("workflow", "role", "place"), name="part_is_started_once")],
                "indexes": [
                    Index(condition=Q(("call__isnull", False)), fields=["call"], name="part_call"),
                    Index(condition=Q(("outcome", "open")), fields=["workflow", "id"], name="part_open"),
                    Index(
                        condition=Q(("ended_at__isnull", False), ("outcome", "open")),
                        fields=["ended_at"],
                        name="part_news",
                    ),
                ],
            },
        ),
        migrations.RunSQL(OF_A_CALL, "ALTER TABLE dispatcher_ojs_job DROP CONSTRAINT job_is_of_a_call"),
        migrations.RunSQL(ENDS, NO_ENDS),
        migrations.RunSQL(STORAGE, migrations.RunSQL.noop),
    ]
