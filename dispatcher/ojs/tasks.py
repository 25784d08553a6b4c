"""The Celery tasks of the Open Job Spec, and those that run periodically."""

from typing import Any

from celery import shared_task

from dispatcher.celery import periodic
from dispatcher.ojs import cron
from dispatcher.ojs import webhooks as deliver
from dispatcher.ojs.workflow import advance as workflows
from dispatcher.tasks import QUIET


@shared_task(name=deliver.DELIVER, **QUIET)
def deliver_webhooks() -> int:
    """Deliver events to webhook subscriptions; return how many posts that makes."""
    return periodic.run(deliver.DELIVER)


@shared_task(name=workflows.ADVANCE, **QUIET)
def advance() -> int:
    """Advance the running workflows; return how many were advanced."""
    return periodic.run(workflows.ADVANCE)


@shared_task(name="dispatcher.post_event")
def post_event(subscription: str, event: dict[str, Any]) -> Any:
    """Post one event to one subscription."""
    return deliver.post(subscription, event)


@shared_task(name=cron.FIRE, **QUIET)
def fire_crons() -> int:
    """Fire the crons whose time has come; return how many calls were sent."""
    return periodic.run(cron.FIRE)


periodic.register(cron.FIRE, every=cron.EVERY, run=cron.fire_due)
periodic.register(workflows.ADVANCE, every=workflows.EVERY, run=workflows.advance_all)
periodic.register(deliver.DELIVER, every=deliver.EVERY, run=deliver.deliver_events)
