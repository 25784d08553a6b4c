"""The history of keys, and queues that no worker serves yet."""

from django.db import migrations, models
from django.db.models.functions import Now


class Migration(migrations.Migration):
    """Make the table, and the column."""

    dependencies = [
        ("dispatcher", "0019_confirmed_fetches"),
    ]

    operations = [
        migrations.AddField(
            model_name="queue",
            name="is_undecided",
            field=models.BooleanField(
                db_default=False,
                default=False,
                editable=False,
                help_text="No worker serves it yet: the first fetch, or the first worker of Celery's, decides who does.",
            ),
        ),
        migrations.CreateModel(
            name="KeyChange",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("key", models.CharField(help_text="Its name: the record outlasts the key.", max_length=255)),
                (
                    "verb",
                    models.CharField(help_text="limit, override, end_override, pause, resume or block.", max_length=16),
                ),
                ("actor", models.CharField(blank=True, help_text="A person's name, or token:NAME.", max_length=255)),
                ("source", models.CharField(help_text="admin, http or python.", max_length=16)),
                ("reason", models.TextField(blank=True)),
                ("before", models.JSONField()),
                ("after", models.JSONField()),
                ("at", models.DateTimeField(db_default=Now())),
            ],
            options={
                "indexes": [
                    models.Index(fields=["at"], name="change_at"),
                    models.Index(fields=["key", "at"], name="change_key"),
                ],
            },
        ),
    ]
