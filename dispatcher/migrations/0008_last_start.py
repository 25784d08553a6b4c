"""A key stores its last throttled start and the cost of that start; the next start follows from the throttle in force."""

from django.db import migrations, models

TO_LAST_START = """
UPDATE dispatcher_ratelimitkey
   SET last_start_at = next_start_at - make_interval(secs => EXTRACT(EPOCH FROM throttle_period)::float8 / throttle_limit),
       last_cost = 1
 WHERE next_start_at IS NOT NULL AND throttle_limit IS NOT NULL
"""
TO_NEXT_START = """
UPDATE dispatcher_ratelimitkey
   SET next_start_at = last_start_at
           + make_interval(secs => LEAST(EXTRACT(EPOCH FROM throttle_period)::float8 * last_cost / throttle_limit, 1e9))
 WHERE last_start_at IS NOT NULL AND throttle_limit IS NOT NULL
"""


class Migration(migrations.Migration):
    """Replace the column; the values follow from the throttles that are stored."""

    dependencies = [("dispatcher", "0007_what_is_told")]

    operations = [
        migrations.AddField(
            model_name="ratelimitkey",
            name="last_start_at",
            field=models.DateTimeField(
                editable=False,
                help_text="The latest start given under a throttle; written by the claim.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="ratelimitkey",
            name="last_cost",
            field=models.PositiveIntegerField(
                default=1,
                db_default=1,
                editable=False,
                help_text="The cost of that start: it delays the next one.",
            ),
        ),
        migrations.RunSQL(TO_LAST_START, TO_NEXT_START),
        migrations.RemoveField(model_name="ratelimitkey", name="next_start_at"),
    ]
