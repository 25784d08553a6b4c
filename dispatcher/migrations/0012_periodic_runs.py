"""When the dispenser's periodic tasks last ran."""

import django.db.models.functions.datetime
from django.db import migrations, models

STORAGE = """
ALTER TABLE dispatcher_periodicrun SET (fillfactor = 20, autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 100, autovacuum_vacuum_cost_delay = 0);
"""

RESET = """
ALTER TABLE dispatcher_periodicrun RESET (fillfactor, autovacuum_vacuum_scale_factor,
    autovacuum_vacuum_threshold, autovacuum_vacuum_cost_delay);
"""


class Migration(migrations.Migration):
    """Make the table, with room in its page for updates in place."""

    dependencies = [
        ("dispatcher", "0011_unstarted"),
    ]

    operations = [
        migrations.CreateModel(
            name="PeriodicRun",
            fields=[
                (
                    "name",
                    models.CharField(
                        help_text="The task, such as dispatcher.tick.", max_length=64, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("ran_at", models.DateTimeField(help_text="When it last started; null: never.", null=True)),
                (
                    "ran_by",
                    models.UUIDField(
                        help_text="The worker that ran it by itself; null: it was asked for, by beat say.", null=True
                    ),
                ),
            ],
        ),
        migrations.RunSQL(STORAGE, RESET),
    ]
