"""How the calls of a queue reach its workers."""

from django.db import migrations, models

HTTP = "UPDATE dispatcher_queue SET delivery = 'http' WHERE is_pulled"
PULLED = "UPDATE dispatcher_queue SET is_pulled = true WHERE delivery = 'http'"


class Migration(migrations.Migration):
    """Replace the column by one with three values."""

    dependencies = [
        ("dispatcher", "0020_key_changes"),
    ]

    operations = [
        migrations.AddField(
            model_name="queue",
            name="delivery",
            field=models.CharField(
                choices=[
                    ("broker", "Through Celery's broker"),
                    ("direct", "Celery workers take them from PostgreSQL"),
                    ("http", "Fetched over HTTP"),
                ],
                db_default="broker",
                default="broker",
                help_text="How its calls reach workers: published through Celery's broker, taken by Celery workers "
                "from PostgreSQL, or fetched over HTTP by workers in any language.",
                max_length=8,
            ),
        ),
        migrations.RunSQL(HTTP, PULLED),
        migrations.RemoveField(
            model_name="queue",
            name="is_pulled",
        ),
        migrations.AddConstraint(
            model_name="queue",
            constraint=models.CheckConstraint(
                condition=models.Q(("delivery__in", ["broker", "direct", "http"])), name="queue_delivery_is_known"
            ),
        ),
    ]
