"""What the dispenser does by itself: ticks, trips, recovery, retention, workflows, webhooks."""

from collections.abc import Iterator

from django.utils import timezone

from bench.scale.compare import Operation, Task
from bench.scale.systems import System
from dispatcher import engine
from dispatcher.lifecycle import retention, schedule
from dispatcher.lifecycle.take import Taker, take
from dispatcher.ojs import enqueue
from dispatcher.ojs import extension as ojs_retention
from dispatcher.ojs import webhooks as deliver
from dispatcher.ojs.workflow import advance
from dispatcher.states import State

WORKED = 100
"""Calls that each busy tick, or trip, dispatches."""
BATCH = 1_000
"""Calls that one statement of the cleanup deletes."""
FEW = 100
"""Calls that fall due, or expire, in one sample."""


def ticking() -> Iterator[Task]:
    """Yield ticks and trips."""
    yield Operation(name="idle tick", do=lambda _: engine.tick(now=timezone.now()))
    yield Operation(name=f"busy tick, {WORKED} calls of 10 lanes", prepare=_work, do=_tick)
    yield Operation(name=f"trip, {WORKED} calls of 10 lanes", prepare=_work, do=_trip)
    yield Operation(name=f"tick with {FEW} calls due", prepare=_make_due, do=_tick)
    yield Operation(name=f"{FEW} calls due, waking them", prepare=_make_due, do=lambda _: schedule.wake_due())
    yield Operation(
        name=f"{FEW} calls expired, discarding them", prepare=_expire, do=lambda _: schedule.discard_expired()
    )
    yield Operation(name="the time until something falls due", do=lambda _: schedule.ask_due().row())


def cleaning() -> Iterator[Task]:
    """Yield what recovery and cleanup do."""
    yield Operation(name="recovery", do=lambda _: engine.recover(now=timezone.now()))
    yield Operation(name="trimming of starts", do=lambda _: retention.trim_starts())
    yield Operation(name="clearing of backpressure", do=lambda _: enqueue.clear_backpressure())
    yield Operation(name=f"cleanup of {BATCH} ended calls", prepare=_age, do=_delete_ended)
    yield Operation(name="cleanup of the event log, one slice", do=lambda _: ojs_retention.delete_entries())
    yield Operation(name="cleanup of workflows", do=lambda _: ojs_retention.delete_workflows())
    yield Operation(name="cleanup of workers", do=lambda _: retention.delete_workers())
    yield Operation(name="advancing of workflows without news", do=lambda _: advance.advance_all())
    yield Operation(name="delivery of events without subscriptions", do=lambda _: deliver.deliver_events())


def _work(system: System) -> System:
    system.run("work")
    return system


def _tick(system: System) -> None:
    del system
    engine.tick(now=timezone.now())


def _trip(system: System) -> None:
    del system
    dispatched = len(take(Taker(queues=["q01"], becomes=State.DISPATCHED), room=WORKED).dispatched)
    if dispatched != WORKED:
        message = f"{dispatched} of {WORKED} calls were dispatched"
        raise AssertionError(message)


def _make_due(system: System) -> System:
    """Leave nothing due, or awake, of the sample before, and let some calls be due now."""
    engine.tick(now=timezone.now())
    system.run("due_now")
    return system


def _expire(system: System) -> System:
    system.run("expired_now")
    return system


def _age(system: System) -> System:
    system.run("ended_long_ago")
    return system


def _delete_ended(system: System) -> None:
    del system
    if retention.delete_ended() != BATCH:
        message = f"there were no {BATCH} calls to delete"
        raise AssertionError(message)
