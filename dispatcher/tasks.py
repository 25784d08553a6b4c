"""The Celery entry points: beat calls the first three, workers run the last."""

from typing import Any, Final

from celery import Task, shared_task

from dispatcher import handlers
from dispatcher.celery import periodic
from dispatcher.celery.send_task import send_with
from dispatcher.engine import compose
from dispatcher.lifecycle.periodic_runs import CLEANUP, RECOVER, TICK

QUIET: Final[dict[str, Any]] = {
    "ignore_result": True,
    "send_events": False,
    "Strategy": "dispatcher.celery.periodic:strategy",
    "apply_async": periodic.send_quietly,
}
"""What keeps a task quiet that runs 86,400 times a day."""


@shared_task(name=TICK, **QUIET)
def tick() -> int:
    """Serve what time brings within this tick; return how many calls were dispatched."""
    return periodic.run(TICK)


@shared_task(name=RECOVER, **QUIET)
def recover() -> int:
    """Put back calls whose leases ran out; return how many."""
    return periodic.run(RECOVER)


@shared_task(name=CLEANUP, **QUIET)
def cleanup() -> int:
    """Delete ended calls past their retention; return how many."""
    return periodic.run(CLEANUP)


def _at_once(_: Task, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
    """Send in this process, beat's or any other: no message of its own."""
    return send_with(*(args or ()), **{**options, **(kwargs or {})})


@shared_task(name="dispatcher.send", apply_async=_at_once)
def send(task: str, args: Any = None, kwargs: Any = None, *, keys: Any = None, **options: Any) -> str:
    """Send another task as a call, for rows of beat that name keys themselves; return its id, .delay() its result.

    keys: names or {name: cost}; options: Celery's, such as queue or expires.
    """
    sent: str = send_with(task, args, kwargs, keys=keys, **options).id
    return sent


@shared_task(name=compose.CALL_DATA_TASK)
def call(call_data: dict[str, Any]) -> Any:
    """Run a call's `call_data` by the handler of its method."""
    return handlers.run(call_data)
