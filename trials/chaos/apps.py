"""The trial as a Django app: it brings the tasks, and sets the fault points in each of its processes."""

from django.apps import AppConfig


class ChaosConfig(AppConfig):
    """Name the app; its tasks are found by Celery in `tasks`."""

    name = "trials.chaos"
    label = "chaos"

    def ready(self) -> None:
        """Install the fault points."""
        from trials.chaos import fault_points  # noqa: PLC0415 -- models must be loaded first

        fault_points.install()
