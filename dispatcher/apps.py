"""The app: it makes the engine known to the managers, and what the database needs after a migration."""

from types import ModuleType
from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class DispatcherConfig(AppConfig):
    """The dispatcher."""

    name = "dispatcher"
    default_auto_field = "django.db.models.BigAutoField"
    engine: ModuleType

    def ready(self) -> None:
        """Register the checks, what follows a migration, and what beat needs at its start."""
        from dispatcher import beat, checks, engine  # noqa: F401, PLC0415 -- models must be loaded first

        self.engine = engine
        post_migrate.connect(_after_migrate, sender=self)


def _after_migrate(*, using: str, **_: Any) -> None:
    from dispatcher import provision  # noqa: PLC0415 -- models must be loaded first

    provision.after_migrate(using)
