"""Which keys templates have made, and indexes of what the cleanup and the audit look for."""

from django.db import migrations, models

import dispatcher.states


class Migration(migrations.Migration):
    """Add the column, and make the indexes; writers wait for them."""

    dependencies = [
        ("dispatcher", "0014_oversized"),
    ]

    operations = [
        migrations.AddField(
            model_name="ratelimitkey",
            name="is_from_template",
            field=models.BooleanField(
                db_default=False,
                default=False,
                editable=False,
                help_text="A template of the settings made it, and nobody has changed its limits: it goes when it is unused.",
            ),
        ),
        migrations.AddIndex(
            model_name="callqueue",
            index=models.Index(
                condition=models.Q(
                    (
                        "state__in",
                        [
                            dispatcher.states.State["PENDING"],
                            dispatcher.states.State["SCHEDULED"],
                            dispatcher.states.State["RETRYABLE"],
                            dispatcher.states.State["COMPLETED"],
                            dispatcher.states.State["CANCELLED"],
                            dispatcher.states.State["DISCARDED"],
                        ],
                    )
                ),
                fields=["lane"],
                name="call_of_lane",
            ),
        ),
        migrations.AddIndex(
            model_name="journalentry",
            index=models.Index(
                condition=models.Q(("kind__in", ["backpressure.warning", "backpressure.cleared"])),
                fields=["queue", "at"],
                name="entry_pressure",
            ),
        ),
        migrations.AddIndex(
            model_name="workflow",
            index=models.Index(
                condition=models.Q(("ended_at__isnull", False), ("parent__isnull", True)),
                fields=["ended_at"],
                name="workflow_root_ended",
            ),
        ),
    ]
