"""The Celery tasks of the Open Job Spec, and those that run periodically."""

from datetime import timedelta
from typing import Any, Final

from celery import shared_task

from dispatcher.celery import periodic
from dispatcher.ojs import cron
from dispatcher.ojs.models import Subscription, Workflow
from dispatcher.tasks import QUIET

ADVANCE: Final = "dispatcher.advance"
DELIVER: Final = "dispatcher.deliver_webhooks"


@shared_task(name=DELIVER, **QUIET)
def deliver_webhooks() -> int:
    """Deliver events to webhook subscriptions; return how many posts that makes."""
    return periodic.run(DELIVER)


@shared_task(name=ADVANCE, **QUIET)
def advance() -> int:
    """Advance the running workflows; return how many were advanced."""
    return periodic.run(ADVANCE)


@shared_task(name="dispatcher.post_event")
def post_event(subscription: str, event: dict[str, Any]) -> Any:
    """Post one event to one subscription."""
    from dispatcher.ojs.webhooks import deliver  # noqa: PLC0415 -- an extra

    return deliver.post(subscription, event)


@shared_task(name=cron.FIRE, **QUIET)
def fire_crons() -> int:
    """Fire the crons whose time has come; return how many calls were sent."""
    return periodic.run(cron.FIRE)


def _advance() -> int:
    if not Workflow.objects.filter(state="running").exists():
        return 0
    from dispatcher.ojs.workflow.advance import advance_all  # noqa: PLC0415 -- an extra

    return advance_all()


def _deliver() -> int:
    if not Subscription.objects.filter(is_active=True).exists():
        return 0
    from dispatcher.ojs.webhooks import deliver  # noqa: PLC0415 -- an extra

    return deliver.deliver_events()


periodic.register(cron.FIRE, every=cron.EVERY, run=cron.fire_due)
periodic.register(ADVANCE, every=timedelta(seconds=1), run=_advance)
periodic.register(DELIVER, every=timedelta(seconds=5), run=_deliver)
