"""The Celery entry points: beat calls the first five, workers run the last."""

from typing import Any, Final

from celery import shared_task

from dispatcher import engine, handlers
from dispatcher.celery import periodic
from dispatcher.lifecycle.periodic_runs import CLEANUP, RECOVER, TICK
from dispatcher.ojs import crons

_PERIODIC: Final[dict[str, Any]] = {
    "ignore_result": True,
    "send_events": False,
    "Strategy": "dispatcher.celery.periodic:strategy",
    "apply_async": periodic.send_quietly,
}
"""What keeps a task quiet that runs 86,400 times a day."""


@shared_task(name=TICK, **_PERIODIC)
def tick() -> int:
    """Serve what time brings within this tick; return how many calls were admitted."""
    return periodic.run(TICK)


@shared_task(name=RECOVER, **_PERIODIC)
def recover() -> int:
    """Put back calls whose leases ran out; return how many."""
    return periodic.run(RECOVER)


@shared_task(name=CLEANUP, **_PERIODIC)
def cleanup() -> int:
    """Delete ended calls past their retention; return how many."""
    return periodic.run(CLEANUP)


@shared_task(name=periodic.TELL, **_PERIODIC)
def tell() -> int:
    """Post what happened to whoever subscribed over HTTP; return how many posts that makes."""
    return periodic.run(periodic.TELL)


@shared_task(name=periodic.ADVANCE, **_PERIODIC)
def advance() -> int:
    """Do what follows in the workflows that run; return how many there were."""
    return periodic.run(periodic.ADVANCE)


@shared_task(name="dispatcher.post_event")
def post_event(subscription: str, event: dict[str, Any]) -> Any:
    """Post one event to one subscription."""
    from dispatcher.ojs import hooks  # noqa: PLC0415 -- an extra

    return hooks.post(subscription, event)


@shared_task(name=crons.TASK, ignore_result=True)
def cron(name: str) -> str | None:
    """Send the call of a cron; return its id, None if it was not its turn."""
    return crons.fire(name)


@shared_task(name=engine.CALL_DATA_TASK)
def call(call_data: dict[str, Any]) -> Any:
    """Run a call's `call_data` by the handler of its method."""
    return handlers.run(call_data)
