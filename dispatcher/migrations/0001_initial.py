"""The tables, and the sequence that calls draw their places from."""

import django.contrib.postgres.fields
import django.db.models.deletion
import django.db.models.functions.datetime
import uuid_utils.compat
from django.db import migrations, models

import dispatcher.models
import dispatcher.states


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.RunSQL(
            "CREATE SEQUENCE dispatcher_call_position AS bigint", "DROP SEQUENCE dispatcher_call_position"
        ),
        migrations.CreateModel(
            name="Lane",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("queue", models.CharField(max_length=255)),
                ("priority", models.SmallIntegerField()),
                (
                    "on_limit",
                    models.CharField(
                        choices=[("wait", "wait"), ("reschedule", "reschedule"), ("drop", "drop")],
                        max_length=16,
                    ),
                ),
                (
                    "key_ids",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.BigIntegerField(),
                        help_text="The keys that its calls name, in order of id.",
                        size=None,
                    ),
                ),
                ("is_awake", models.BooleanField(db_default=False, default=False)),
                ("served_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
        ),
        migrations.CreateModel(
            name="CallQueue",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid_utils.compat.uuid7, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "position",
                    models.BigIntegerField(db_default=dispatcher.models.NextPosition(), editable=False),
                ),
                ("task", models.CharField(max_length=255)),
                ("args", models.JSONField(default=list)),
                ("kwargs", models.JSONField(default=dict)),
                (
                    "call_data",
                    models.JSONField(help_text="The article's form: a method and its params.", null=True),
                ),
                ("meta", models.JSONField(default=dict)),
                ("queue", models.CharField(max_length=255)),
                ("priority", models.SmallIntegerField(default=0)),
                (
                    "on_limit",
                    models.CharField(
                        choices=[("wait", "wait"), ("reschedule", "reschedule"), ("drop", "drop")],
                        default=dispatcher.states.OnLimit["WAIT"],
                        max_length=16,
                    ),
                ),
                (
                    "costs",
                    models.JSONField(default=dict, help_text="Its cost by key name, where that is not 1."),
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
                ("retry", models.JSONField(help_text="Its retry policy; empty is the setting's.", null=True)),
                (
                    "scheduled_at",
                    models.DateTimeField(help_text="Not before; of a retryable call its next attempt.", null=True),
                ),
                (
                    "expires_at",
                    models.DateTimeField(help_text="Discarded if it has not started by then.", null=True),
                ),
                ("attempt", models.PositiveSmallIntegerField(default=0)),
                ("ticket", models.UUIDField(editable=False, null=True)),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("dispatched_at", models.DateTimeField(null=True)),
                ("published_at", models.DateTimeField(null=True)),
                ("started_at", models.DateTimeField(null=True)),
                ("finished_at", models.DateTimeField(null=True)),
                ("result", models.JSONField(null=True)),
                (
                    "error",
                    models.JSONField(help_text="The latest failure: type, message, attempt, occurred_at.", null=True),
                ),
                ("errors", models.JSONField(default=list, help_text="Every failure, oldest first.")),
                (
                    "lane",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="dispatcher.lane",
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
            },
        ),
        migrations.CreateModel(
            name="RateLimitKey",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                (
                    "name",
                    models.CharField(help_text="Such as api.stripe.com or tenant:acme.", max_length=255, unique=True),
                ),
                (
                    "concurrency",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="The most cost in flight at once; 0 lets nothing start, empty is no limit.",
                        null=True,
                    ),
                ),
                (
                    "rate_limit",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="The most cost of starts in any window of the rate period.",
                        null=True,
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
                (
                    "is_paused",
                    models.BooleanField(
                        default=False, help_text="Nothing starts until it is resumed.", verbose_name="paused"
                    ),
                ),
                (
                    "blocked_until",
                    models.DateTimeField(blank=True, help_text="The provider said stop until then.", null=True),
                ),
                (
                    "override_until",
                    models.DateTimeField(
                        blank=True,
                        help_text="Until then the override's limits are in force, in place of those above.",
                        null=True,
                    ),
                ),
                ("override_concurrency", models.PositiveIntegerField(blank=True, null=True)),
                ("override_rate_limit", models.PositiveIntegerField(blank=True, null=True)),
                ("override_rate_period", models.DurationField(blank=True, null=True)),
                ("override_throttle_limit", models.PositiveIntegerField(blank=True, null=True)),
                ("override_throttle_period", models.DurationField(blank=True, null=True)),
                (
                    "next_start_at",
                    models.DateTimeField(
                        editable=False,
                        help_text="The earliest next start that the throttle allows; written by the claim.",
                        null=True,
                    ),
                ),
                (
                    "admissions",
                    models.BigIntegerField(
                        db_default=0,
                        default=0,
                        editable=False,
                        help_text="Numbers the admissions under it; written under its lock.",
                    ),
                ),
                (
                    "opens_at",
                    models.DateTimeField(
                        editable=False,
                        help_text="When time opens it for the lanes parked on it; written by the admission.",
                        null=True,
                    ),
                ),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
            ],
            options={
                "verbose_name": "rate limit key",
                "permissions": [
                    ("pause_ratelimitkey", "Can pause and resume rate limit keys"),
                    ("override_ratelimitkey", "Can override rate limit keys for a time"),
                ],
                "indexes": [
                    models.Index(
                        condition=models.Q(("opens_at__isnull", False)), fields=["opens_at"], name="key_opens"
                    ),
                    models.Index(
                        condition=models.Q(("override_until__isnull", False)),
                        fields=["override_until"],
                        name="key_override_ends",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("name__regex", "^[a-zA-Z0-9][a-zA-Z0-9._:-]*$")),
                        name="key_name_is_well_formed",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("rate_limit__isnull", True), ("rate_period__isnull", True)),
                            models.Q(
                                ("rate_limit__isnull", False),
                                ("rate_period__isnull", False),
                                ("rate_limit__gte", 1),
                                ("rate_period__gt", "0"),
                            ),
                            _connector="OR",
                        ),
                        name="key_rate_is_whole_or_absent",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("throttle_limit__isnull", True), ("throttle_period__isnull", True)),
                            models.Q(
                                ("throttle_limit__isnull", False),
                                ("throttle_period__isnull", False),
                                ("throttle_limit__gte", 1),
                                ("throttle_period__gt", "0"),
                            ),
                            _connector="OR",
                        ),
                        name="key_throttle_is_whole_or_absent",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("override_rate_limit__isnull", True), ("override_rate_period__isnull", True)),
                            models.Q(
                                ("override_rate_limit__isnull", False),
                                ("override_rate_period__isnull", False),
                                ("override_rate_limit__gte", 1),
                                ("override_rate_period__gt", "0"),
                            ),
                            _connector="OR",
                        ),
                        name="key_override_rate_is_whole_or_absent",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("override_throttle_limit__isnull", True),
                                ("override_throttle_period__isnull", True),
                            ),
                            models.Q(
                                ("override_throttle_limit__isnull", False),
                                ("override_throttle_period__isnull", False),
                                ("override_throttle_limit__gte", 1),
                                ("override_throttle_period__gt", "0"),
                            ),
                            _connector="OR",
                        ),
                        name="key_override_throttle_is_whole_or_absent",
                    ),
                ],
            },
        ),
        migrations.AddField(
            model_name="lane",
            name="parked_on",
            field=models.ForeignKey(
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="parked",
                to="dispatcher.ratelimitkey",
            ),
        ),
        migrations.CreateModel(
            name="Slot",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("cost", models.PositiveIntegerField()),
                ("started_at", models.DateTimeField(null=True)),
                ("lease_until", models.DateTimeField()),
                (
                    "call",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
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
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="slots",
                        to="dispatcher.ratelimitkey",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Window",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "key_id", "bucket_at", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("bucket_at", models.DateTimeField()),
                ("cost", models.PositiveBigIntegerField()),
                ("last_start_at", models.DateTimeField()),
                (
                    "key",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="windows",
                        to="dispatcher.ratelimitkey",
                    ),
                ),
            ],
        ),
        migrations.AddIndex(
            model_name="callqueue",
            index=models.Index(
                condition=models.Q(("state", dispatcher.states.State["AVAILABLE"])),
                fields=["lane", "position"],
                name="call_waiting",
            ),
        ),
        migrations.AddIndex(
            model_name="callqueue",
            index=models.Index(
                condition=models.Q(
                    (
                        "state__in",
                        (dispatcher.states.State["SCHEDULED"], dispatcher.states.State["RETRYABLE"]),
                    )
                ),
                fields=["scheduled_at"],
                name="call_due",
            ),
        ),
        migrations.AddIndex(
            model_name="callqueue",
            index=models.Index(
                condition=models.Q(
                    ("expires_at__isnull", False),
                    (
                        "state__in",
                        [
                            dispatcher.states.State["SCHEDULED"],
                            dispatcher.states.State["RETRYABLE"],
                            dispatcher.states.State["AVAILABLE"],
                            dispatcher.states.State["PENDING"],
                        ],
                    ),
                ),
                fields=["expires_at"],
                name="call_expires",
            ),
        ),
        migrations.AddIndex(
            model_name="callqueue",
            index=models.Index(
                condition=models.Q(("state", dispatcher.states.State["DISPATCHED"])),
                fields=["dispatched_at"],
                name="call_unpublished",
            ),
        ),
        migrations.AddIndex(
            model_name="callqueue",
            index=models.Index(
                condition=models.Q(("finished_at__isnull", False)),
                fields=["state", "finished_at"],
                name="call_ended",
            ),
        ),
        migrations.AddConstraint(
            model_name="callqueue",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    (
                        "state__in",
                        [
                            "scheduled",
                            "pending",
                            "available",
                            "dispatched",
                            "active",
                            "retryable",
                            "completed",
                            "cancelled",
                            "discarded",
                        ],
                    )
                ),
                name="call_state_is_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="callqueue",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(
                        (
                            "state__in",
                            (dispatcher.states.State["DISPATCHED"], dispatcher.states.State["ACTIVE"]),
                        ),
                        ("ticket__isnull", False),
                    ),
                    models.Q(
                        models.Q(
                            (
                                "state__in",
                                (dispatcher.states.State["DISPATCHED"], dispatcher.states.State["ACTIVE"]),
                            ),
                            _negated=True,
                        ),
                        ("ticket__isnull", True),
                    ),
                    _connector="OR",
                ),
                name="call_in_flight_has_a_ticket",
            ),
        ),
        migrations.AddConstraint(
            model_name="callqueue",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("state", dispatcher.states.State["ACTIVE"]), _negated=True),
                    ("started_at__isnull", False),
                    _connector="OR",
                ),
                name="call_active_has_started",
            ),
        ),
        migrations.AddConstraint(
            model_name="callqueue",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(
                        ("finished_at__isnull", False),
                        (
                            "state__in",
                            (
                                dispatcher.states.State["COMPLETED"],
                                dispatcher.states.State["CANCELLED"],
                                dispatcher.states.State["DISCARDED"],
                            ),
                        ),
                    ),
                    models.Q(
                        models.Q(
                            (
                                "state__in",
                                (
                                    dispatcher.states.State["COMPLETED"],
                                    dispatcher.states.State["CANCELLED"],
                                    dispatcher.states.State["DISCARDED"],
                                ),
                            ),
                            _negated=True,
                        ),
                        ("finished_at__isnull", True),
                    ),
                    _connector="OR",
                ),
                name="call_ended_has_finished",
            ),
        ),
        migrations.AddConstraint(
            model_name="callqueue",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(
                        (
                            "state__in",
                            (dispatcher.states.State["SCHEDULED"], dispatcher.states.State["RETRYABLE"]),
                        ),
                        _negated=True,
                    ),
                    ("scheduled_at__isnull", False),
                    _connector="OR",
                ),
                name="call_due_has_a_time",
            ),
        ),
        migrations.AddConstraint(
            model_name="callqueue",
            constraint=models.CheckConstraint(
                condition=models.Q(("priority__range", (-100, 100))), name="call_priority_is_in_range"
            ),
        ),
        migrations.AddIndex(
            model_name="lane",
            index=models.Index(
                models.OrderBy(models.F("priority"), descending=True),
                models.F("queue"),
                condition=models.Q(("is_awake", True)),
                name="lane_awake",
            ),
        ),
        migrations.AddIndex(
            model_name="lane",
            index=models.Index(
                models.F("parked_on"),
                models.OrderBy(models.F("priority"), descending=True),
                models.F("served_at"),
                models.F("id"),
                condition=models.Q(("parked_on__isnull", False)),
                name="lane_parked",
            ),
        ),
        migrations.AddConstraint(
            model_name="lane",
            constraint=models.UniqueConstraint(
                fields=("queue", "priority", "on_limit", "key_ids"), name="lane_is_one_per_kind"
            ),
        ),
        migrations.AddConstraint(
            model_name="lane",
            constraint=models.CheckConstraint(
                condition=models.Q(("parked_on__isnull", True), ("is_awake", False), _connector="OR"),
                name="lane_parked_is_not_awake",
            ),
        ),
        migrations.AddIndex(
            model_name="slot",
            index=models.Index(condition=models.Q(("key__isnull", False)), fields=["key"], name="slot_key"),
        ),
        migrations.AddConstraint(
            model_name="slot",
            constraint=models.CheckConstraint(condition=models.Q(("cost__gte", 1)), name="slot_cost_is_positive"),
        ),
        migrations.AddConstraint(
            model_name="slot",
            constraint=models.UniqueConstraint(fields=("call", "key"), name="slot_is_one_per_call_and_key"),
        ),
    ]
