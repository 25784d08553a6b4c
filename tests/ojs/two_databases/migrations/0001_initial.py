"""The tables of orders."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies = [("dispatcher", "__first__")]

    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("number", models.PositiveIntegerField()),
            ],
        ),
        migrations.CreateModel(
            name="OrderCall",
            fields=[
                (
                    "callqueue_ptr",
                    models.OneToOneField(
                        auto_created=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        parent_link=True,
                        primary_key=True,
                        serialize=False,
                        to="dispatcher.callqueue",
                    ),
                ),
                (
                    "order",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="two_databases.order"),
                ),
            ],
            bases=("dispatcher.callqueue",),
        ),
    ]
