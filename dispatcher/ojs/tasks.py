"""The Celery entry points of the Open Job Spec, and what its workers run periodically."""

from datetime import timedelta
from typing import Any, Final

from celery import shared_task

from dispatcher.celery import periodic
from dispatcher.celery.periodic import Extra
from dispatcher.conf import conf
from dispatcher.models import Subscription, Workflow
from dispatcher.ojs import enqueue
from dispatcher.ojs.cron import CRON_TASK, fire_cron
from dispatcher.tasks import QUIET

ADVANCE: Final = "dispatcher.advance"
TELL: Final = "dispatcher.tell"


@shared_task(name=TELL, **QUIET)
def tell() -> int:
    """Post what happened to whoever subscribed over HTTP; return how many posts that makes."""
    return periodic.run(TELL)


@shared_task(name=ADVANCE, **QUIET)
def advance() -> int:
    """Do what follows in the workflows that run; return how many there were."""
    return periodic.run(ADVANCE)


@shared_task(name="dispatcher.post_event")
def post_event(subscription: str, event: dict[str, Any]) -> Any:
    """Post one event to one subscription."""
    from dispatcher.ojs.webhooks import deliver  # noqa: PLC0415 -- an extra

    return deliver.post(subscription, event)


@shared_task(name=CRON_TASK, ignore_result=True)
def cron(name: str) -> str | None:
    """Send the call of a cron; return its id, None if it was not its turn."""
    return fire_cron(name)


def _advance() -> int:
    from dispatcher.ojs.workflow.advance import advance_all  # noqa: PLC0415 -- an extra

    return advance_all()


def _tell() -> int:
    from dispatcher.ojs.webhooks import deliver  # noqa: PLC0415 -- an extra

    return deliver.tell()


def _runs_workflows() -> bool:
    return Workflow.objects.using(conf().database).filter(state="running").exists()


def _has_subscriptions() -> bool:
    return Subscription.objects.using(conf().database).filter(is_active=True).exists()


periodic.register(ADVANCE, Extra(every=timedelta(seconds=1), run=_advance, is_needed=_runs_workflows))
periodic.register(TELL, Extra(every=timedelta(seconds=5), run=_tell, is_needed=_has_subscriptions))
periodic.before_recovery(enqueue.ease)
