"""The tables with their storage parameters, the functions, and the sequence that calls draw their positions from."""

from django.contrib.postgres.fields import ArrayField
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import migrations, models
from django.db.models import DO_NOTHING, PROTECT, CheckConstraint, Index, Q, UniqueConstraint
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Now
from uuid_utils.compat import uuid7

from dispatcher.migrations._functions import InstallFunctions
from dispatcher.models.calls import NextPosition
from dispatcher.states import Delivery, OnFull, OnLimit, State

# Room for updates in place, and an autovacuum that keeps up with them. The thresholds of the small tables are low, so
# that autovacuum comes to all of them whenever it looks: once a minute. It does not lock a trip out of a table, or
# of the long values of one, to give its empty end back. See docs/decisions/0013-storage.md.
STORAGE = """
ALTER TABLE dispatcher_ratelimitkey SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 200, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = false);
ALTER TABLE dispatcher_lane SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 200,
    autovacuum_vacuum_cost_delay = 0, vacuum_truncate = false);
ALTER TABLE dispatcher_queue SET (vacuum_truncate = false);
ALTER TABLE dispatcher_block SET (vacuum_truncate = false);
ALTER TABLE dispatcher_worker SET (vacuum_truncate = false, toast.vacuum_truncate = false);
ALTER TABLE dispatcher_slot SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = false);
ALTER TABLE dispatcher_lanesite SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = false);
ALTER TABLE dispatcher_note SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0, vacuum_truncate = false);
ALTER TABLE dispatcher_share SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = false);
ALTER TABLE dispatcher_start SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0, vacuum_truncate = false);
ALTER TABLE dispatcher_callqueue SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 2000, autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_insert_scale_factor = 0.05, vacuum_truncate = false, toast.vacuum_truncate = false);
ALTER TABLE dispatcher_process SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = false);
-- A process writes its mark again when it connects again.
ALTER TABLE dispatcher_process SET UNLOGGED;
ALTER TABLE dispatcher_periodicrun SET (fillfactor = 20, autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 100, autovacuum_vacuum_cost_delay = 0);
"""
SEQUENCE = "CREATE SEQUENCE dispatcher_call_position AS bigint"

# The tables that change with every call. No unique index: while an old snapshot is held, the check of one reads all
# former versions of a row at each update. The site of a lane is made and deleted with it.
HOT_TABLES = """
CREATE TABLE dispatcher_lanesite (
    lane_id bigint NOT NULL,
    queue varchar(255) NOT NULL,
    priority smallint NOT NULL,
    place bigint,
    served_at timestamptz NOT NULL DEFAULT 'epoch',
    last_served_at timestamptz,
    kept_until timestamptz,
    waits_from bigint NOT NULL DEFAULT -9223372036854775808
);
CREATE INDEX lanesite_place ON dispatcher_lanesite (place, queue, priority DESC, served_at, lane_id)
    WHERE place IS NOT NULL;
CREATE INDEX lanesite_lane ON dispatcher_lanesite (lane_id);
CREATE INDEX lanesite_kept ON dispatcher_lanesite (queue) WHERE kept_until IS NOT NULL;

CREATE TABLE dispatcher_start (
    key_id bigint NOT NULL,
    at timestamptz NOT NULL,
    total bigint NOT NULL,
    cost bigint NOT NULL,
    last_cost int NOT NULL,
    delayed bigint,
    longest interval,
    allowed_at timestamptz
);
CREATE INDEX start_key ON dispatcher_start (key_id, at, total);

CREATE TABLE dispatcher_share (
    key_id bigint NOT NULL,
    priority smallint NOT NULL,
    share_id bigint NOT NULL,
    next bigint NOT NULL
);
CREATE INDEX share_key ON dispatcher_share (key_id, priority, share_id);

CREATE TABLE dispatcher_note (
    at timestamptz NOT NULL,
    lane_id bigint,
    key_id bigint,
    is_forced boolean NOT NULL DEFAULT false,
    position bigint NOT NULL DEFAULT -9223372036854775808
);
CREATE INDEX note_at ON dispatcher_note (at);
CREATE INDEX note_key ON dispatcher_note (key_id, at) WHERE key_id IS NOT NULL;

CREATE FUNCTION dispatcher_site_of_lane() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO dispatcher_lanesite (lane_id, queue, priority) VALUES (NEW.id, NEW.queue, NEW.priority);
  ELSE
    DELETE FROM dispatcher_lanesite WHERE lane_id = OLD.id;
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER lane_has_a_site AFTER INSERT OR DELETE ON dispatcher_lane
    FOR EACH ROW EXECUTE FUNCTION dispatcher_site_of_lane();

-- The turns of lanes that wait for a key are of its `fair_by`: with another one they begin again. A later statement than
-- that which has locked the key, so it finds all lanes that were parked before.
CREATE FUNCTION dispatcher_turns_of_key() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
  INSERT INTO dispatcher_note (at, lane_id, is_forced)
  SELECT clock_timestamp(), site.lane_id, true FROM dispatcher_lanesite AS site WHERE site.place = NEW.id;
  DELETE FROM dispatcher_share WHERE key_id = NEW.id;
  RETURN NULL;
END $$;
CREATE TRIGGER key_has_other_turns AFTER UPDATE OF fair_by ON dispatcher_ratelimitkey
    FOR EACH ROW WHEN (NEW.fair_by IS DISTINCT FROM OLD.fair_by) EXECUTE FUNCTION dispatcher_turns_of_key();
"""
NO_HOT_TABLES = """
DROP FUNCTION dispatcher_site_of_lane, dispatcher_turns_of_key CASCADE;
DROP TABLE dispatcher_note, dispatcher_share, dispatcher_start, dispatcher_lanesite;
"""


def _is_positive_or_absent(column: str) -> Q:
    return Q((f"{column}__isnull", True), (f"{column}__gte", 1), _connector="OR")


def _is_whole_or_absent(rate: str) -> Q:
    limit, period = f"{rate}_limit", f"{rate}_period"
    present = Q((f"{limit}__isnull", False), (f"{period}__isnull", False), (f"{limit}__gte", 1), (f"{period}__gt", "0"))
    return Q(Q((f"{limit}__isnull", True), (f"{period}__isnull", True)), present, _connector="OR")


class Migration(migrations.Migration):
    """Make everything."""

    initial = True

    dependencies = []

    operations = [
        migrations.RunSQL(SEQUENCE, "DROP SEQUENCE dispatcher_call_position"),
        *(
            migrations.CreateModel(
                name=name,
                fields=[(key, field(primary_key=True, serialize=False))],
                options={"db_table": f"dispatcher_{name.lower()}", "managed": False},
            )
            for name, key, field in (
                ("LaneSite", "lane_id", models.BigIntegerField),
                ("Note", "at", models.DateTimeField),
                ("Start", "key_id", models.BigIntegerField),
                ("Share", "key_id", models.BigIntegerField),
            )
        ),
        migrations.CreateModel(
            name="Process",
            fields=[
                ("id", models.UUIDField(editable=False, primary_key=True, serialize=False)),
                ("worker_id", models.UUIDField(null=True)),
                ("queues", ArrayField(base_field=models.CharField(max_length=255), size=None)),
                ("idle_at", models.DateTimeField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name="LeaseCheck",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("checked_at", models.DateTimeField()),
                ("since", models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name="PeriodicRun",
            fields=[
                ("name", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("ran_at", models.DateTimeField()),
                ("ran_by", models.UUIDField(null=True)),
                ("reaches_broker", models.BooleanField(default=True)),
            ],
        ),
        migrations.CreateModel(
            name="ResultCursor",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("finished_at", models.DateTimeField()),
                ("call_id", models.UUIDField()),
            ],
        ),
        migrations.CreateModel(
            name="Worker",
            fields=[
                ("id", models.UUIDField(editable=False, primary_key=True, serialize=False)),
                ("name", models.CharField(help_text="Its Celery name, such as celery@host.", max_length=255)),
                ("host", models.CharField(max_length=255)),
                ("pid", models.PositiveIntegerField()),
                ("pool", models.CharField(max_length=64)),
                ("processes", models.PositiveIntegerField(help_text="How many calls it runs concurrently.")),
                (
                    "queues",
                    ArrayField(
                        base_field=models.CharField(max_length=255),
                        help_text="The Celery queues that it consumes.",
                        size=None,
                    ),
                ),
                (
                    "tasks",
                    ArrayField(
                        base_field=models.CharField(max_length=255),
                        help_text="The names of its registered tasks, in order.",
                        null=True,
                        size=None,
                    ),
                ),
                ("started_at", models.DateTimeField()),
                ("seen_at", models.DateTimeField(help_text="Its latest heartbeat.")),
                ("serves_until", models.DateTimeField(help_text="Its queues count as served until then.")),
                ("stopped_at", models.DateTimeField(help_text="When it stopped accepting messages.", null=True)),
                (
                    "lost_at",
                    models.DateTimeField(
                        help_text="When its heartbeats had expired and its calls were recovered.", null=True
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Block",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("key_id", models.BigIntegerField()),
                ("until", models.DateTimeField()),
            ],
            options={"indexes": [Index(fields=["key_id"], name="block_key")]},
        ),
        migrations.CreateModel(
            name="KeyChange",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("key", models.CharField(max_length=255)),
                ("verb", models.CharField(max_length=16)),
                ("actor", models.CharField(blank=True, max_length=255)),
                ("source", models.CharField(max_length=16)),
                ("reason", models.TextField(blank=True)),
                ("before", models.JSONField()),
                ("after", models.JSONField()),
                ("at", models.DateTimeField(db_default=Now())),
            ],
            options={
                "indexes": [Index(fields=["at"], name="change_at"), Index(fields=["key", "at"], name="change_key")]
            },
        ),
        migrations.CreateModel(
            name="Lane",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("queue", models.CharField(max_length=255)),
                ("priority", models.SmallIntegerField()),
                (
                    "on_limit",
                    models.CharField(
                        choices=[("wait", "wait"), ("reschedule", "reschedule"), ("drop", "drop")], max_length=16
                    ),
                ),
                ("key_ids", ArrayField(base_field=models.BigIntegerField(), size=None)),
            ],
            options={
                "constraints": [
                    UniqueConstraint(fields=("queue", "priority", "on_limit", "key_ids"), name="lane_is_one_per_kind")
                ]
            },
        ),
        migrations.CreateModel(
            name="Queue",
            fields=[
                ("name", models.CharField(max_length=255, primary_key=True, serialize=False)),
                (
                    "delivery",
                    models.CharField(
                        choices=[
                            ("broker", "Through Celery's broker"),
                            ("direct", "Celery workers take them from PostgreSQL"),
                            ("http", "Fetched over HTTP"),
                        ],
                        db_default=Delivery.DIRECT,
                        default=Delivery.DIRECT,
                        help_text="How its calls reach workers: published through Celery's broker, taken by Celery workers from PostgreSQL, or fetched over HTTP by workers in any language.",
                        max_length=8,
                    ),
                ),
                ("is_undecided", models.BooleanField(db_default=False, default=False, editable=False)),
                (
                    "weight",
                    models.PositiveSmallIntegerField(
                        db_default=1,
                        default=1,
                        help_text="How many calls of this queue a worker starts for each call of a queue of weight 1, while both have calls of equal priority that may start. From 1 to 1000; only for direct delivery.",
                        validators=[MinValueValidator(1), MaxValueValidator(1000)],
                    ),
                ),
                (
                    "max_depth",
                    models.PositiveIntegerField(
                        blank=True, help_text="Maximum number of waiting calls; empty is no bound.", null=True
                    ),
                ),
                (
                    "on_full",
                    models.CharField(
                        choices=[("reject", "reject"), ("block", "block"), ("drop_oldest", "drop_oldest")],
                        default=OnFull.REJECT,
                        help_text="What happens to a job sent above the bound.",
                        max_length=16,
                    ),
                ),
                (
                    "warn_at",
                    models.FloatField(
                        default=0.8, help_text="The share of the bound from which it counts as nearly full."
                    ),
                ),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
            ],
            options={
                "constraints": [
                    CheckConstraint(condition=_is_positive_or_absent("max_depth"), name="queue_depth_is_positive"),
                    CheckConstraint(
                        condition=Q(("delivery__in", ["broker", "direct", "http"])), name="queue_delivery_is_known"
                    ),
                    CheckConstraint(condition=Q(("weight__range", (1, 1000))), name="queue_weight_is_1_to_1000"),
                    CheckConstraint(
                        condition=Q(("weight", 1), ("delivery", Delivery.DIRECT), _connector="OR"),
                        name="queue_weight_is_of_direct_delivery",
                    ),
                    CheckConstraint(condition=Q(("warn_at__range", (0, 1))), name="queue_warns_at_a_share"),
                ]
            },
        ),
        migrations.CreateModel(
            name="RateLimitKey",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "name",
                    models.CharField(help_text="Such as api.stripe.com or tenant:acme.", max_length=255, unique=True),
                ),
                (
                    "is_group",
                    models.GeneratedField(
                        db_persist=True,
                        expression=models.ExpressionWrapper(
                            Q(("name__endswith", "*")), output_field=models.BooleanField()
                        ),
                        output_field=models.BooleanField(),
                    ),
                ),
                (
                    "concurrency",
                    models.PositiveIntegerField(
                        blank=True, help_text="Maximum cost in flight; 0 starts nothing, empty is no limit.", null=True
                    ),
                ),
                (
                    "per_worker",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="Maximum cost in flight in one worker, whose queues are delivered directly or over HTTP.",
                        null=True,
                    ),
                ),
                (
                    "rate_limit",
                    models.PositiveIntegerField(
                        blank=True, help_text="Maximum cost of the starts in any window of the rate period.", null=True
                    ),
                ),
                ("rate_period", models.DurationField(blank=True, null=True)),
                (
                    "throttle_limit",
                    models.PositiveIntegerField(
                        blank=True, help_text="Starts per throttle period, evenly spaced.", null=True
                    ),
                ),
                ("throttle_period", models.DurationField(blank=True, null=True)),
                ("is_paused", models.BooleanField(default=False, verbose_name="paused")),
                ("blocked_until", models.DateTimeField(blank=True, null=True)),
                ("override_until", models.DateTimeField(blank=True, null=True)),
                ("override_concurrency", models.PositiveIntegerField(blank=True, null=True)),
                ("override_per_worker", models.PositiveIntegerField(blank=True, null=True)),
                ("override_rate_limit", models.PositiveIntegerField(blank=True, null=True)),
                ("override_rate_period", models.DurationField(blank=True, null=True)),
                ("override_throttle_limit", models.PositiveIntegerField(blank=True, null=True)),
                ("override_throttle_period", models.DurationField(blank=True, null=True)),
                (
                    "fair_by",
                    models.CharField(
                        blank=True,
                        help_text="The template of the keys that name shares, such as tenant:*: calls that wait for this key take turns by them.",
                        max_length=255,
                        null=True,
                    ),
                ),
                (
                    "weight",
                    models.PositiveSmallIntegerField(
                        db_default=1,
                        default=1,
                        help_text="How many turns its calls take as a share, beside one of a share of weight 1.",
                    ),
                ),
                (
                    "is_observed",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        help_text="Its limits stop nothing: what they would have delayed is counted.",
                        verbose_name="observed",
                    ),
                ),
                ("is_from_template", models.BooleanField(db_default=False, default=False, editable=False)),
                ("slots_from", models.BigIntegerField(db_default=0, default=0, editable=False)),
                ("limited_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
            ],
            options={
                "verbose_name": "rate limit key",
                "permissions": [
                    ("pause_ratelimitkey", "Can pause and resume rate limit keys"),
                    ("override_ratelimitkey", "Can override rate limit keys for a time"),
                ],
                "indexes": [
                    Index(
                        condition=Q(("override_until__isnull", False)),
                        fields=["override_until"],
                        name="key_override_ends",
                    ),
                    Index(condition=Q(("is_group", True)), fields=["name"], name="key_group"),
                ],
                "constraints": [
                    CheckConstraint(
                        condition=Q(("name__regex", "^[a-zA-Z0-9][a-zA-Z0-9._:-]*\\*?$")),
                        name="key_name_is_well_formed",
                    ),
                    *(
                        CheckConstraint(condition=_is_positive_or_absent(limit), name=f"key_{limit}_is_positive")
                        for limit in ("per_worker", "override_per_worker")
                    ),
                    CheckConstraint(
                        condition=Q(("weight__gte", 1), ("weight__lte", 1000)), name="key_weight_is_1_to_1000"
                    ),
                    CheckConstraint(
                        condition=Q(
                            ("fair_by__isnull", True),
                            ("fair_by__regex", "^[a-zA-Z0-9][a-zA-Z0-9._:-]*\\*$"),
                            _connector="OR",
                        ),
                        name="key_fair_by_is_a_template",
                    ),
                    *(
                        CheckConstraint(condition=_is_whole_or_absent(rate), name=f"key_{rate}_is_whole_or_absent")
                        for rate in ("rate", "throttle", "override_rate", "override_throttle")
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="CallQueue",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                ("position", models.BigIntegerField(db_default=NextPosition(), editable=False)),
                ("placement", models.JSONField(editable=False, null=True)),
                ("task", models.CharField(max_length=255)),
                ("args", models.JSONField(default=list)),
                ("kwargs", models.JSONField(default=dict)),
                ("call_data", models.JSONField(null=True)),
                ("meta", models.JSONField(default=dict)),
                ("queue", models.CharField(max_length=255)),
                ("priority", models.SmallIntegerField(default=0)),
                (
                    "on_limit",
                    models.CharField(
                        choices=[("wait", "wait"), ("reschedule", "reschedule"), ("drop", "drop")],
                        default=OnLimit.WAIT,
                        max_length=16,
                    ),
                ),
                ("costs", models.JSONField(default=dict)),
                (
                    "key_costs",
                    ArrayField(base_field=models.PositiveIntegerField(), editable=False, null=True, size=None),
                ),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("scheduled", "Scheduled"),
                            ("pending", "Pending"),
                            ("available", "Waiting"),
                            ("dispatched", "Dispatched"),
                            ("active", "Active"),
                            ("retryable", "Retryable"),
                            ("completed", "Completed"),
                            ("cancelled", "Cancelled"),
                            ("discarded", "Discarded"),
                        ],
                        max_length=16,
                    ),
                ),
                ("retry", models.JSONField(null=True)),
                (
                    "scheduled_at",
                    models.DateTimeField(
                        help_text="The earliest start; of a retryable call, of its next attempt.", null=True
                    ),
                ),
                ("expires_at", models.DateTimeField(help_text="Discarded if it has not started by then.", null=True)),
                ("headers", models.JSONField(null=True)),
                ("options", models.JSONField(null=True)),
                ("oversized_cost", models.IntegerField(editable=False, null=True)),
                ("chosen_keys", models.JSONField(editable=False, null=True)),
                ("attempt", models.IntegerField(default=0)),
                (
                    "crashes",
                    models.SmallIntegerField(
                        db_default=0, default=0, help_text="Consecutive attempts that crashed their process."
                    ),
                ),
                ("returns", models.SmallIntegerField(db_default=0, default=0)),
                ("is_revoked", models.BooleanField(db_default=False, default=False)),
                ("ticket", models.UUIDField(editable=False, null=True)),
                ("claim", models.UUIDField(editable=False, null=True)),
                ("created_at", models.DateTimeField(db_default=Now())),
                ("dispatched_at", models.DateTimeField(null=True)),
                ("published_at", models.DateTimeField(null=True)),
                ("started_at", models.DateTimeField(null=True)),
                ("finished_at", models.DateTimeField(null=True)),
                (
                    "reason",
                    models.CharField(
                        choices=[
                            ("failed", "Failed for good"),
                            ("expired", "Not started in time"),
                            ("limit", "Dropped at a limit"),
                            ("poison", "Poison: it kills its workers"),
                            ("queue_full", "Made room in a full queue"),
                        ],
                        help_text="Why it was discarded.",
                        max_length=16,
                        null=True,
                    ),
                ),
                ("result", models.JSONField(null=True)),
                ("error", models.JSONField(null=True)),
                ("errors", models.JSONField(default=list)),
                ("error_count", models.IntegerField(db_default=0, default=0)),
                (
                    "lane",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=PROTECT,
                        related_name="+",
                        to="dispatcher.lane",
                    ),
                ),
                (
                    "oversized_key",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        editable=False,
                        null=True,
                        on_delete=DO_NOTHING,
                        related_name="+",
                        to="dispatcher.ratelimitkey",
                    ),
                ),
            ],
            options={
                "verbose_name": "call",
                "permissions": [
                    ("cancel_callqueue", "Can cancel calls"),
                    ("retry_callqueue", "Can retry ended calls"),
                    ("run_callqueue", "Can move calls to the front"),
                ],
                "indexes": [
                    Index(
                        condition=Q(("oversized_key__isnull", True), ("state", State.AVAILABLE)),
                        fields=["lane", "position"],
                        name="call_waiting",
                    ),
                    Index(
                        condition=Q(("queue__isnull", False), ("state", State.AVAILABLE)),
                        fields=["queue", "position"],
                        name="call_of_queue",
                    ),
                    Index(
                        condition=Q(("finished_at__isnull", True), ("lane__isnull", True)),
                        fields=["position"],
                        name="call_unplaced",
                    ),
                    Index(
                        condition=Q(
                            (
                                "state__in",
                                [
                                    State.PENDING,
                                    State.SCHEDULED,
                                    State.RETRYABLE,
                                    State.COMPLETED,
                                    State.CANCELLED,
                                    State.DISCARDED,
                                ],
                            )
                        ),
                        fields=["lane"],
                        name="call_of_lane",
                    ),
                    Index(
                        condition=Q(("oversized_key__isnull", False)), fields=["lane", "position"], name="call_aside"
                    ),
                    Index(
                        condition=Q(("oversized_key__isnull", False)),
                        fields=["oversized_key", "oversized_cost", "position"],
                        name="call_oversized",
                    ),
                    Index(
                        condition=Q(("state__in", (State.SCHEDULED, State.RETRYABLE))),
                        fields=["scheduled_at"],
                        name="call_due",
                    ),
                    Index(
                        condition=Q(
                            ("expires_at__isnull", False),
                            ("state__in", [State.SCHEDULED, State.RETRYABLE, State.AVAILABLE, State.PENDING]),
                        ),
                        fields=["expires_at"],
                        name="call_expires",
                    ),
                    Index(condition=Q(("state", State.DISPATCHED)), fields=["dispatched_at"], name="call_unpublished"),
                    Index(
                        condition=Q(("state__in", (State.DISPATCHED, State.ACTIVE))),
                        fields=["queue", "state"],
                        name="call_in_flight",
                    ),
                    Index(
                        condition=Q(("finished_at__isnull", True), ("returns__gt", 0)),
                        fields=["queue", "task"],
                        name="call_returned",
                    ),
                    Index(condition=Q(("reason__isnull", False)), fields=["reason", "finished_at"], name="call_reason"),
                    Index(
                        condition=Q(("finished_at__isnull", False)), fields=["state", "finished_at"], name="call_ended"
                    ),
                    Index(
                        condition=Q(("finished_at__isnull", False)),
                        fields=["queue", "state", "finished_at"],
                        name="call_ended_queue",
                    ),
                    Index(
                        condition=Q(("state__in", (State.SCHEDULED, State.RETRYABLE))),
                        fields=["state", "queue", "scheduled_at", "id"],
                        name="call_due_queue",
                    ),
                    Index(condition=Q(("state", State.PENDING)), fields=["queue", "id"], name="call_pending"),
                    Index(
                        condition=Q(
                            ("created_at__isnull", False),
                            ("state__in", (State.PENDING, State.SCHEDULED, State.AVAILABLE)),
                        ),
                        fields=["created_at"],
                        name="call_sent",
                    ),
                    Index(
                        KeyTextTransform("occurred_at", "error"),
                        condition=Q(("error__isnull", False), ("finished_at__isnull", True)),
                        name="call_failed",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Slot",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("cost", models.IntegerField()),
                ("started_at", models.DateTimeField(null=True)),
                ("lease_until", models.DateTimeField()),
                ("worker_id", models.UUIDField(null=True)),
                ("pulled_until", models.DateTimeField(null=True)),
                ("is_confirmed", models.BooleanField(db_default=False, default=False)),
                (
                    "call",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=DO_NOTHING,
                        related_name="slots",
                        to="dispatcher.callqueue",
                    ),
                ),
                (
                    "key",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=PROTECT,
                        related_name="slots",
                        to="dispatcher.ratelimitkey",
                    ),
                ),
            ],
            options={
                "indexes": [
                    Index(fields=["call"], name="slot_call"),
                    Index(condition=Q(("key__isnull", False)), fields=["key", "id"], name="slot_key"),
                    Index(condition=Q(("pulled_until__isnull", False)), fields=["pulled_until"], name="slot_pulled"),
                ]
            },
        ),
        migrations.RunSQL(HOT_TABLES, NO_HOT_TABLES),
        migrations.RunSQL(STORAGE, migrations.RunSQL.noop),
        InstallFunctions("a1ec3045"),
    ]
