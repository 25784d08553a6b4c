"""What events are told from is found by indexes: who waits since when, who failed, who belongs to a workflow."""

import django.db.models.fields.json
from django.db import migrations, models


class Migration(migrations.Migration):
    """Add the indexes; on a table of millions each takes seconds, and writers wait for it."""

    dependencies = [
        ("dispatcher", "0006_part_error"),
    ]

    operations = [
        migrations.AlterField(
            model_name="subscription",
            name="told_until",
            field=models.CharField(default="", help_text="Up to where events were posted.", max_length=64),
        ),
        migrations.AddIndex(
            model_name="callqueue",
            index=models.Index(
                condition=models.Q(("state__in", ("pending", "scheduled", "available"))),
                fields=["created_at"],
                name="call_sent",
            ),
        ),
        migrations.AddIndex(
            model_name="callqueue",
            index=models.Index(
                django.db.models.fields.json.KeyTextTransform("occurred_at", "error"),
                condition=models.Q(("error__isnull", False), ("finished_at__isnull", True)),
                name="call_failed",
            ),
        ),
        migrations.AddIndex(
            model_name="journalentry",
            index=models.Index(django.db.models.fields.json.KeyTextTransform("job_id", "data"), name="entry_job"),
        ),
        migrations.AddIndex(
            model_name="part",
            index=models.Index(condition=models.Q(("call__isnull", False)), fields=["call"], name="part_call"),
        ),
        migrations.AddIndex(
            model_name="workflow",
            index=models.Index(fields=["created_at"], name="workflow_made"),
        ),
        migrations.AddIndex(
            model_name="workflow",
            index=models.Index(
                condition=models.Q(("ended_at__isnull", False)), fields=["ended_at"], name="workflow_ended"
            ),
        ),
    ]
