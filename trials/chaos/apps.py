"""The trial as a Django app: it brings the tasks, and sets the traps in each of its processes."""

from django.apps import AppConfig

from trials.chaos import traps


class ChaosConfig(AppConfig):
    """Name the app; its tasks are found by Celery in `tasks`."""

    name = "trials.chaos"
    label = "chaos"

    def ready(self) -> None:
        """Set the traps."""
        traps.install()
