"""What lives for long: calls that keep their lanes, and that are tried more than 32,767 times."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    """Widen `attempt`, which rewrites the table of calls; it is locked meanwhile, so nothing is sent or run."""

    dependencies = [
        ("dispatcher", "0008_last_start"),
    ]

    operations = [
        # Of the model only: nothing changes in the database.
        migrations.AlterField(
            model_name="callqueue",
            name="lane",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="dispatcher.lane",
            ),
        ),
        migrations.AlterField(
            model_name="callqueue",
            name="attempt",
            field=models.PositiveIntegerField(default=0),
        ),
        migrations.AlterField(
            model_name="callqueue",
            name="errors",
            field=models.JSONField(default=list, help_text="The first 5 failures and the last 20, oldest first."),
        ),
        migrations.AddField(
            model_name="callqueue",
            name="error_count",
            field=models.PositiveIntegerField(
                db_default=0,
                default=0,
                help_text="How many failures there were, those included that are not kept.",
            ),
        ),
    ]
