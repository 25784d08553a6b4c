"""Migrate the database, unless workers of the old code still run: `python -m project.migrate`."""

import os
import sys

import django
from django.core.management import call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.models.functions import Now


def main() -> None:
    """Run the migrations. Ends with exit code 1 if there are some to run and workers are alive."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    django.setup()
    if has_unapplied_migrations() and (workers := live_workers()):
        sys.exit(
            f"Migrations must not run beside workers of the old code, and these are alive: {', '.join(workers)}.\n"
            "Stop them first: docker compose stop web api beat dispenser worker\n"
            "A worker that was killed counts as alive until its lease has run out (1 minute)."
        )
    call_command("migrate", interactive=False)


def has_unapplied_migrations() -> bool:
    """Return whether there is a migration to run."""
    executor = MigrationExecutor(connection)
    return bool(executor.migration_plan(executor.loader.graph.leaf_nodes()))


def live_workers() -> list[str]:
    """Return the names of the Celery workers that have sent a heartbeat within the lease."""
    from dispatcher.conf import conf  # noqa: PLC0415 -- Django is set up first
    from dispatcher.models import Worker  # noqa: PLC0415 -- Django is set up first

    if Worker._meta.db_table not in connection.introspection.table_names():
        return []
    live = Worker.objects.filter(stopped_at=None, seen_at__gt=Now() - conf().run_lease)
    return sorted(live.values_list("name", flat=True))


if __name__ == "__main__":
    main()
