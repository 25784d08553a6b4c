"""The rows of a window are used again: each has a place in a lap in place of the moment at which its part began."""

import django.db.models.deletion
from django.db import migrations, models

# What is there gets places below all of those in a lap: it counts for as long as it would have, and is trimmed then.
# The page of a part fills with its former versions in no time; the emptier it is kept, the earlier they are pruned.
TO_PLACES = """
ALTER TABLE dispatcher_window SET (fillfactor = 20);
ALTER TABLE dispatcher_window ALTER COLUMN bucket_at TYPE bigint USING (-1e6 * EXTRACT(EPOCH FROM bucket_at))::bigint;
ALTER TABLE dispatcher_window RENAME COLUMN bucket_at TO place;
"""
TO_MOMENTS = """
ALTER TABLE dispatcher_window SET (fillfactor = 50);
ALTER TABLE dispatcher_window RENAME COLUMN place TO bucket_at;
ALTER TABLE dispatcher_window ALTER COLUMN bucket_at TYPE timestamptz USING
    to_timestamp(CASE WHEN bucket_at < 0 THEN bucket_at / -1e6 ELSE bucket_at END);
"""


class Migration(migrations.Migration):
    """Change the column where it stands; Django can't alter a composite primary key."""

    dependencies = [("dispatcher", "0004_pull")]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunSQL(TO_PLACES, TO_MOMENTS)],
            state_operations=[
                migrations.DeleteModel("Window"),
                migrations.CreateModel(
                    name="Window",
                    fields=[
                        (
                            "pk",
                            models.CompositePrimaryKey(
                                "key_id", "place", blank=True, editable=False, primary_key=True, serialize=False
                            ),
                        ),
                        ("place", models.BigIntegerField()),
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
            ],
        ),
    ]
