"""Name the cursor of a subscription after what it counts."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Rename the column."""

    dependencies = [("dispatcher", "0020_key_changes")]

    operations = [
        migrations.RenameField(model_name="subscription", old_name="told_until", new_name="delivered_cursor"),
        migrations.AlterField(
            model_name="subscription",
            name="delivered_cursor",
            field=models.CharField(default="", help_text="Events up to here were delivered.", max_length=64),
        ),
    ]
