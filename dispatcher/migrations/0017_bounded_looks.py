"""Indexes for what people list and count, and the marks by which workflows with news are found."""

from django.db import migrations, models

import dispatcher.states

LOOK_ONCE = "UPDATE dispatcher_workflow SET look_at = now() WHERE state = 'running'"
"""What ended before this migration has no mark: each workflow that runs is looked at once."""


class Migration(migrations.Migration):
    """Add the marks and the indexes; writers wait for them."""

    dependencies = [
        ("dispatcher", "0016_cost_of_sending"),
    ]

    operations = [
        migrations.RemoveIndex(
            model_name="callqueue",
            name="call_poison",
        ),
        migrations.AddField(
            model_name="callqueue",
            name="is_awaited",
            field=models.BooleanField(
                db_default=False,
                default=False,
                editable=False,
                help_text="A workflow waits for its end, and has not yet recorded it.",
            ),
        ),
        migrations.AddField(
            model_name="workflow",
            name="look_at",
            field=models.DateTimeField(
                editable=False,
                help_text="When it is looked at although no call of it has ended; of one that ended: when its parent is.",
                null=True,
            ),
        ),
        migrations.AddIndex(
            model_name="callqueue",
            index=models.Index(
                condition=models.Q(("reason__isnull", False)), fields=["reason", "finished_at"], name="call_reason"
            ),
        ),
        migrations.AddIndex(
            model_name="callqueue",
            index=models.Index(
                condition=models.Q(("finished_at__isnull", False)),
                fields=["queue", "state", "finished_at"],
                name="call_ended_queue",
            ),
        ),
        migrations.AddIndex(
            model_name="callqueue",
            index=models.Index(
                condition=models.Q(
                    ("state__in", (dispatcher.states.State["SCHEDULED"], dispatcher.states.State["RETRYABLE"]))
                ),
                fields=["state", "queue", "scheduled_at", "id"],
                name="call_due_queue",
            ),
        ),
        migrations.AddIndex(
            model_name="callqueue",
            index=models.Index(
                condition=models.Q(("state", dispatcher.states.State["PENDING"])),
                fields=["queue", "id"],
                name="call_pending",
            ),
        ),
        migrations.AddIndex(
            model_name="callqueue",
            index=models.Index(
                condition=models.Q(("finished_at__isnull", False), ("is_awaited", True)),
                fields=["finished_at"],
                name="call_awaited",
            ),
        ),
        migrations.AddIndex(
            model_name="journalentry",
            index=models.Index(fields=["kind", "at"], name="entry_kind"),
        ),
        migrations.AddIndex(
            model_name="part",
            index=models.Index(condition=models.Q(("outcome", "open")), fields=["workflow", "id"], name="part_open"),
        ),
        migrations.AddIndex(
            model_name="workflow",
            index=models.Index(
                condition=models.Q(("look_at__isnull", False)), fields=["look_at"], name="workflow_look"
            ),
        ),
        migrations.RunSQL(LOOK_ONCE, migrations.RunSQL.noop),
    ]
