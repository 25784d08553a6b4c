"""What the dispenser does by itself: ticks, trips, recovery, retention, workflows, webhooks."""

from collections.abc import Iterator

from django.utils import timezone

from bench.figures import ensure
from bench.scale.compare import Operation, Task, after
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
    work, expired = after("work"), after("expired_now")
    yield Operation("idle tick", do=tick)
    yield Operation(f"busy tick, {WORKED} calls of 10 lanes", prepare=work, do=tick)
    yield Operation(f"trip, {WORKED} calls of 10 lanes", prepare=work, do=_trip)
    yield Operation(f"tick with {FEW} calls due", prepare=_make_due, do=tick)
    yield Operation(f"{FEW} calls due, waking them", prepare=_make_due, do=lambda _: schedule.wake_due())
    yield Operation(f"{FEW} calls expired, discarding them", prepare=expired, do=lambda _: schedule.discard_expired())
    yield Operation("the time until something falls due", do=lambda _: schedule.ask_due().row())


def cleaning() -> Iterator[Task]:
    """Yield what recovery and cleanup do."""
    yield Operation("recovery", do=lambda _: engine.recover(now=timezone.now()))
    yield Operation("trimming of starts", do=lambda _: retention.trim_starts())
    yield Operation("clearing of backpressure", do=lambda _: enqueue.clear_backpressure())
    yield Operation(f"cleanup of {BATCH} ended calls", prepare=after("ended_long_ago"), do=_delete_ended)
    yield Operation("cleanup of the event log, one slice", do=lambda _: ojs_retention.delete_entries())
    yield Operation("cleanup of workflows", do=lambda _: ojs_retention.delete_workflows())
    yield Operation("cleanup of workers", do=lambda _: retention.delete_workers())
    yield Operation("advancing of workflows without news", do=lambda _: advance.advance_all())
    yield Operation("delivery of events without subscriptions", do=lambda _: deliver.deliver_events())


def tick(_: object) -> None:
    """Do what a tick does without its sleep until what falls due within it."""
    engine.tick(now=timezone.now())


def _trip(_: System) -> None:
    dispatched = len(take(Taker(queues=["q01"], becomes=State.DISPATCHED), room=WORKED).dispatched)
    ensure(dispatched == WORKED, f"{dispatched} of {WORKED} calls were dispatched")


def _make_due(system: System) -> System:
    """Leave nothing due, or awake, of the sample before, and let some calls be due now."""
    tick(system)
    return after("due_now")(system)  # type: ignore[no-any-return]


def _delete_ended(_: System) -> None:
    ensure(retention.delete_ended() == BATCH, f"there were no {BATCH} calls to delete")
