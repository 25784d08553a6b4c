"""The app: what it registers at the start, and what the database needs after a migration."""

from collections.abc import Callable
from typing import Any

from django.apps import AppConfig
from django.db.models import Model
from django.db.models.signals import post_migrate, pre_delete


class DispatcherConfig(AppConfig):
    """The dispatcher."""

    name = "dispatcher"
    default_auto_field = "django.db.models.BigAutoField"
    fence: Callable[[Any], bool]
    """Let a Celery task claim its calls, whatever its class. Raises TypeError if that can't be."""

    def ready(self) -> None:
        """Register the checks, what follows a migration, and what beat and workers need at their start."""
        from dispatcher import checks  # noqa: F401, PLC0415 -- models must be loaded first
        from dispatcher.celery import beat, fence  # noqa: F401, PLC0415 -- models must be loaded first
        from dispatcher.worker import steps  # noqa: F401, PLC0415 -- models must be loaded first

        self.fence = fence.fence
        post_migrate.connect(_after_migrate, sender=self)
        _protect_calls()


def _protect_calls() -> None:
    """Have a cascade refused that deletes a call which has not ended.

    A cascade reaches calls only by a model that inherits from them. Without one there is no receiver: Django deletes
    in bulk only if the signal has no receiver.
    """
    from dispatcher.models import CallQueue  # noqa: PLC0415 -- models must be loaded first

    if any(getattr(relation, "parent_link", False) for relation in CallQueue._meta.related_objects):
        pre_delete.connect(_refuse_unended, sender=CallQueue)


def _refuse_unended(*, instance: Model, using: str, **_: Any) -> None:
    from dispatcher.managers import check_has_ended  # noqa: PLC0415 -- models must be loaded first
    from dispatcher.models import CallQueue  # noqa: PLC0415 -- models must be loaded first

    check_has_ended(CallQueue.objects.using(using).filter(pk=instance.pk))


def _after_migrate(*, using: str, **_: Any) -> None:
    from dispatcher.celery import schedule  # noqa: PLC0415 -- models must be loaded first

    schedule.after_migrate(using)
