"""What is known to be in flight under a key; the calls with a unique key by their states; what waits in a queue."""

from django.db import migrations, models

import dispatcher.states


class Migration(migrations.Migration):
    """Add the columns and an index, and make another one anew; writers wait for it."""

    dependencies = [
        ("dispatcher", "0015_unused"),
    ]

    operations = [
        migrations.RemoveIndex(
            model_name="callqueue",
            name="call_unique",
        ),
        migrations.AddField(
            model_name="ratelimitkey",
            name="counted_admissions",
            field=models.BigIntegerField(
                editable=False,
                help_text="Up to which of its admissions the next two count; a lone send writes all three.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="ratelimitkey",
            name="most_held",
            field=models.BigIntegerField(
                editable=False,
                help_text="No more cost than this is in flight under it, until its next admission.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="ratelimitkey",
            name="most_unstarted",
            field=models.BigIntegerField(
                editable=False, help_text="No more of that cost than this has not started.", null=True
            ),
        ),
        migrations.AddIndex(
            model_name="callqueue",
            index=models.Index(
                condition=models.Q(("state", dispatcher.states.State["AVAILABLE"])),
                fields=["queue", "position"],
                name="call_of_queue",
            ),
        ),
        migrations.AddIndex(
            model_name="callqueue",
            index=models.Index(
                condition=models.Q(("unique_key__isnull", False)),
                fields=["unique_key", "state", "created_at"],
                name="call_unique",
            ),
        ),
    ]
