"""Whether the worker that fetched a call has shown that it got it."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Add the column; its default is no write to the rows that exist."""

    dependencies = [
        ("dispatcher", "0018_lanes_in_turn"),
    ]

    operations = [
        migrations.AddField(
            model_name="slot",
            name="is_confirmed",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="The worker that fetched the call over HTTP has sent a heartbeat or progress for it.",
            ),
        ),
    ]
