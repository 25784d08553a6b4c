"""Lanes that are awake are found in the order in which they are served, and the highest of a queue at once."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Make the indexes; few lanes are awake."""

    dependencies = [
        ("dispatcher", "0017_bounded_looks"),
    ]

    operations = [
        migrations.RemoveIndex(model_name="lane", name="lane_awake"),
        migrations.AddIndex(
            model_name="lane",
            index=models.Index(
                models.F("queue"),
                models.OrderBy(models.F("priority"), descending=True),
                condition=models.Q(("is_awake", True)),
                name="lane_awake",
            ),
        ),
        migrations.AddIndex(
            model_name="lane",
            index=models.Index(
                models.OrderBy(models.F("priority"), descending=True),
                models.F("served_at"),
                models.F("id"),
                condition=models.Q(("is_awake", True)),
                name="lane_turn",
            ),
        ),
    ]
