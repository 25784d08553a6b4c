"""The Celery entry points: beat calls the first three, workers run the last."""

from typing import Any

from celery import shared_task

from dispatcher import crons, engine, handlers, push


@shared_task(name="dispatcher.tick", ignore_result=True)
def tick() -> int:
    """Serve what time brings within this tick; return how many calls were admitted."""
    return engine.tick()


@shared_task(name="dispatcher.recover", ignore_result=True)
def recover() -> int:
    """Put back calls whose leases ran out; return how many."""
    push.ease()
    return engine.recover()


@shared_task(name="dispatcher.cleanup", ignore_result=True)
def cleanup() -> int:
    """Delete ended calls past their retention; return how many."""
    return engine.cleanup()


@shared_task(name="dispatcher.tell", ignore_result=True)
def tell() -> int:
    """Post what happened to whoever subscribed over HTTP; return how many posts that makes."""
    from dispatcher.web.ojs import hooks  # noqa: PLC0415 -- an extra

    return hooks.tell()


@shared_task(name="dispatcher.advance", ignore_result=True)
def advance() -> int:
    """Do what follows in the workflows that run; return how many there were."""
    from dispatcher.web.ojs import workflows  # noqa: PLC0415 -- an extra

    return workflows.advance_all()


@shared_task(name="dispatcher.post_event")
def post_event(subscription: str, event: dict[str, Any]) -> Any:
    """Post one event to one subscription."""
    from dispatcher.web.ojs import hooks  # noqa: PLC0415 -- an extra

    return hooks.post(subscription, event)


@shared_task(name=crons.TASK, ignore_result=True)
def cron(name: str) -> str | None:
    """Send the call of a cron; return its id, None if it was not its turn."""
    return crons.fire(name)


@shared_task(name=engine.CALL_DATA_TASK)
def call(call_data: dict[str, Any]) -> Any:
    """Run a call's `call_data` by the handler of its method."""
    return handlers.run(call_data)
