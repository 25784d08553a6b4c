"""The Celery entry points: beat calls the first three, workers run the last."""

from typing import Any

from celery import shared_task

from dispatcher import engine, handlers


@shared_task(name="dispatcher.tick", ignore_result=True)
def tick() -> int:
    """Serve what time brings within this tick; return how many calls were admitted."""
    return engine.tick()


@shared_task(name="dispatcher.recover", ignore_result=True)
def recover() -> int:
    """Put back calls whose leases ran out; return how many."""
    return engine.recover()


@shared_task(name="dispatcher.cleanup", ignore_result=True)
def cleanup() -> int:
    """Delete ended calls past their retention; return how many."""
    return engine.cleanup()


@shared_task(name=engine.CALL_DATA_TASK)
def call(call_data: dict[str, Any]) -> Any:
    """Run a call's `call_data` by the handler of its method."""
    return handlers.run(call_data)
