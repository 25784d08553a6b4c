"""The Celery tasks of the Open Job Spec, and those that run periodically."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from celery import shared_task

from dispatcher.celery import periodic
from dispatcher.ojs import cron, webhooks
from dispatcher.ojs.workflow import advance
from dispatcher.tasks import QUIET


def _run_periodically(name: str, every: timedelta, work: Callable[[], int]) -> None:
    periodic.register(name, every=every, run=work)

    @shared_task(name=name, **QUIET)
    def run() -> int:
        return periodic.run(name)


_run_periodically(cron.FIRE, cron.EVERY, cron.fire_due)
_run_periodically(advance.ADVANCE, advance.EVERY, advance.advance_all)
_run_periodically(webhooks.DELIVER, webhooks.EVERY, webhooks.deliver_events)


@shared_task(name="dispatcher.post_event")
def post_event(subscription: str, event: dict[str, Any]) -> Any:
    """Post one event to one subscription."""
    return webhooks.post(subscription, event)
