"""A call keeps the headers and the options of its message until it is published."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Add two columns that are null at first: no row is rewritten."""

    dependencies = [
        ("dispatcher", "0012_periodic_runs"),
    ]

    operations = [
        migrations.AddField(
            model_name="callqueue",
            name="headers",
            field=models.JSONField(
                help_text="Headers of its message: the sender's, and those that instrumentation added at the send.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="callqueue",
            name="options",
            field=models.JSONField(
                help_text="Options of its message, as of apply_async: time limits, the broker's priority, and so on.",
                null=True,
            ),
        ),
    ]
