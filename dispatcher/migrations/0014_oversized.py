"""Calls that cost more than the limits of a key in force ever allow are set aside, and found by indexes of their own."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    """Add the columns, and make the index of waiting calls anew without those set aside; writers wait for it."""

    dependencies = [
        ("dispatcher", "0013_message"),
    ]

    operations = [
        migrations.RemoveIndex(model_name="callqueue", name="call_waiting"),
        migrations.AddField(
            model_name="callqueue",
            name="oversized_cost",
            field=models.PositiveIntegerField(editable=False, help_text="What it costs of that key.", null=True),
        ),
        migrations.AddField(
            model_name="callqueue",
            name="oversized_key",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                editable=False,
                help_text="The key whose limits in force never allow its cost: it waits alone until they do.",
                null=True,
                on_delete=django.db.models.deletion.DO_NOTHING,
                related_name="+",
                to="dispatcher.ratelimitkey",
            ),
        ),
        migrations.AddIndex(
            model_name="callqueue",
            index=models.Index(
                condition=models.Q(("oversized_key__isnull", True), ("state", "available")),
                fields=["lane", "position"],
                name="call_waiting",
            ),
        ),
        migrations.AddIndex(
            model_name="callqueue",
            index=models.Index(
                condition=models.Q(("oversized_key__isnull", False)), fields=["lane", "position"], name="call_aside"
            ),
        ),
        migrations.AddIndex(
            model_name="callqueue",
            index=models.Index(
                condition=models.Q(("oversized_key__isnull", False)),
                fields=["oversized_key", "oversized_cost", "position"],
                name="call_oversized",
            ),
        ),
        migrations.AddConstraint(
            model_name="callqueue",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("oversized_cost__isnull", True), ("oversized_key__isnull", True)),
                    models.Q(
                        ("oversized_cost__isnull", False),
                        ("oversized_key__isnull", False),
                        ("state", "available"),
                    ),
                    _connector="OR",
                ),
                name="call_oversized_waits",
            ),
        ),
    ]
