"""The app: what it registers at the start, and what the database needs after a migration."""

from collections.abc import Callable
from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class DispatcherConfig(AppConfig):
    """The dispatcher."""

    name = "dispatcher"
    default_auto_field = "django.db.models.BigAutoField"
    fence: Callable[[Any], bool]
    """Let a Celery task claim its calls, whatever its class. Raises TypeError if that can't be."""

    def ready(self) -> None:
        """Register the checks, what follows a migration, and what beat and workers need at their start."""
        from dispatcher import checks  # noqa: F401, PLC0415 -- models must be loaded first
        from dispatcher.celery import fence, send_task  # noqa: PLC0415 -- models must be loaded first
        from dispatcher.worker import steps  # noqa: F401, PLC0415 -- models must be loaded first

        self.fence = fence.fence
        send_task.hook()
        post_migrate.connect(_after_migrate, sender=self)


def _after_migrate(*, using: str, **_: Any) -> None:
    from dispatcher.celery import schedule  # noqa: PLC0415 -- models must be loaded first

    schedule.after_migrate(using)
