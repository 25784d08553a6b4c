"""The trial as a Django app: it brings the tasks, and sets the traps in each of its processes."""

from django.apps import AppConfig


class ChaosConfig(AppConfig):
    """Name the app; its tasks are found by Celery in `tasks`."""

    name = "trials.chaos"
    label = "chaos"

    def ready(self) -> None:
        """Set the traps."""
        from trials.chaos import traps  # noqa: PLC0415 -- models must be loaded first

        traps.install()
