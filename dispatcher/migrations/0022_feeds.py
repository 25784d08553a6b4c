"""Which workers with a feed are idle."""

import django.contrib.postgres.fields
from django.db import migrations, models


class Migration(migrations.Migration):
    """Make the table."""

    dependencies = [
        ("dispatcher", "0021_delivery"),
    ]

    operations = [
        migrations.CreateModel(
            name="Feed",
            fields=[
                ("worker_id", models.UUIDField(editable=False, primary_key=True, serialize=False)),
                (
                    "queues",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=255),
                        help_text="The queues whose calls it takes directly.",
                        size=None,
                    ),
                ),
                (
                    "idle_at",
                    models.DateTimeField(
                        help_text="Since when it has free processes and waits; null: a call need not wake it.",
                        null=True,
                    ),
                ),
            ],
        ),
    ]
