"""The Celery tasks of the Open Job Spec, and those that run periodically."""

from datetime import timedelta
from typing import Any, Final

from celery import shared_task

from dispatcher.celery import periodic
from dispatcher.celery.periodic import Extra
from dispatcher.ojs.cron import CRON_TASK, fire_cron
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


@shared_task(name=CRON_TASK, ignore_result=True)
def cron(name: str) -> str | None:
    """Send the call of a cron; return its id, None if it is not due."""
    return fire_cron(name)


def _advance() -> int:
    from dispatcher.ojs.workflow.advance import advance_all  # noqa: PLC0415 -- an extra

    return advance_all()


def _deliver() -> int:
    from dispatcher.ojs.webhooks import deliver  # noqa: PLC0415 -- an extra

    return deliver.deliver_events()


def _runs_workflows() -> bool:
    return Workflow.objects.filter(state="running").exists()


def _has_subscriptions() -> bool:
    return Subscription.objects.filter(is_active=True).exists()


periodic.register(ADVANCE, Extra(every=timedelta(seconds=1), run=_advance, is_needed=_runs_workflows))
periodic.register(DELIVER, Extra(every=timedelta(seconds=5), run=_deliver, is_needed=_has_subscriptions))
