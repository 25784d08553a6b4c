"""Store windows in full pages: only the newest part of one is updated, and what that leaves is pruned at once."""

from django.db import migrations


class Migration(migrations.Migration):
    """Set how full pages get."""

    dependencies = [("dispatcher", "0004_pull")]

    operations = [
        migrations.RunSQL(
            "ALTER TABLE dispatcher_window SET (fillfactor = 90);",
            "ALTER TABLE dispatcher_window SET (fillfactor = 50);",
        )
    ]
