"""A call may be written before its lane exists: the lane is empty then, and the placement holds what makes it."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    """Add the column, its index and its facts; on a table of millions the checks take seconds, and writers wait."""

    dependencies = [
        ("dispatcher", "0009_long_lived"),
    ]

    operations = [
        migrations.AddField(
            model_name="callqueue",
            name="placement",
            field=models.JSONField(
                editable=False, help_text="What makes its keys and its lane, as long as it has no lane.", null=True
            ),
        ),
        migrations.AlterField(
            model_name="callqueue",
            name="lane",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="dispatcher.lane",
            ),
        ),
        migrations.AddIndex(
            model_name="callqueue",
            index=models.Index(
                condition=models.Q(("finished_at__isnull", True), ("lane__isnull", True)),
                fields=["position"],
                name="call_unplaced",
            ),
        ),
        migrations.AddConstraint(
            model_name="callqueue",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("lane__isnull", False), ("placement__isnull", True)),
                    models.Q(("lane__isnull", True), ("placement__isnull", False)),
                    _connector="OR",
                ),
                name="call_has_a_lane_or_its_placement",
            ),
        ),
        migrations.AddConstraint(
            model_name="callqueue",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("state__in", ("dispatched", "active")), _negated=True),
                    ("lane__isnull", False),
                    _connector="OR",
                ),
                name="call_in_flight_has_a_lane",
            ),
        ),
    ]
