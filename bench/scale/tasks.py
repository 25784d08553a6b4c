"""The task that is called."""

from celery import shared_task


@shared_task
def nothing() -> None:
    """Do nothing."""
