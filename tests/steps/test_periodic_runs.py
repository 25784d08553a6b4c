"""Periodic runs: which worker runs the dispenser's tasks, and what is recorded of it."""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from django.db import connection, transaction

from dispatcher import engine
from dispatcher.celery import periodic
from dispatcher.lifecycle import periodic_runs
from dispatcher.lifecycle.periodic_runs import CLEANUP, RECOVER, TICK, Periodic
from dispatcher.models import PeriodicRun
from tests.builders import T0, at, committed
from tests.races.lockstep import at_once, holding

pytestmark = committed

ONE, OTHER = UUID(int=1), UUID(int=2)
TASK = Periodic(name=TICK, every=timedelta(seconds=1))
WEEKLY = Periodic(name=CLEANUP, every=timedelta(days=1), grace=timedelta(days=7))


def look(worker: UUID, now: datetime, *, reaches_broker: bool = True, task: Periodic = TASK) -> bool:
    """Let a worker look; return whether it is to run the task."""
    return periodic_runs.begin([task], worker=worker, reaches_broker=reaches_broker, now=now) == [task.name]


def asked(now: datetime, task: Periodic = TASK) -> None:
    assert periodic_runs.begin([task], now=now) == [task.name]


def recorded() -> tuple[datetime | None, UUID | None]:
    run = PeriodicRun.objects.get(name=TICK)
    return run.ran_at, run.ran_by


# Who runs a task


def test_a_task_that_never_ran_is_run_at_once() -> None:
    assert look(ONE, T0)
    assert recorded() == (T0, ONE)


def test_a_task_runs_once_a_period_wherever() -> None:
    assert look(ONE, T0)
    assert not look(OTHER, at(0.9))
    assert look(OTHER, at(0.91))
    assert not look(ONE, at(1.8))
    assert look(ONE, at(1.82))


def test_a_task_that_beat_asks_for_is_left_to_it() -> None:
    for second in range(30):
        asked(at(second))
        assert not look(ONE, at(second + 0.5))


def test_a_task_that_beat_asks_for_runs_however_often() -> None:
    asked(T0)
    asked(at(0.1))
    assert recorded() == (at(0.1), None)


def test_of_workers_that_look_at_once_one_runs_it() -> None:
    for minute in range(10):
        won = at_once(*[partial(look, UUID(int=number), at(60 * minute)) for number in range(1, 7)])
        assert sum(won) == 1


def test_a_task_whose_row_a_user_keeps_locked_runs_without_a_record() -> None:
    asked(T0)
    with holding("SELECT FROM dispatcher_periodicrun FOR UPDATE"):
        assert not look(ONE, at(0.5))
        assert look(ONE, at(1.1))
        assert periodic_runs.begin([TASK, WEEKLY], now=at(1.1)) == [TICK, CLEANUP]
    assert recorded() == (T0, None)


def test_a_record_from_the_future_holds_no_worker_off() -> None:
    asked(at(3600))
    assert look(ONE, T0)


def test_cleanup_waits_for_a_schedule_of_once_a_week() -> None:
    assert WEEKLY in periodic_runs.periodic()
    asked(T0, WEEKLY)
    assert not look(ONE, T0 + timedelta(days=7, hours=12), task=WEEKLY)
    assert look(ONE, T0 + timedelta(days=8, hours=1), task=WEEKLY)
    assert look(ONE, T0 + timedelta(days=9, hours=1), task=WEEKLY)


# Workers without a broker


def test_a_run_that_reaches_no_broker_keeps_no_worker_from_one_that_does() -> None:
    assert look(ONE, T0, reaches_broker=False)
    assert not look(OTHER, at(0.1), reaches_broker=False)
    assert look(OTHER, at(0.1))
    assert not look(ONE, at(1.1), reaches_broker=False)


def test_a_worker_without_a_broker_never_runs_what_another_does() -> None:
    assert look(OTHER, T0)
    for second in range(1, 30):
        assert not look(ONE, at(second - 0.05), reaches_broker=False)
        assert look(OTHER, at(second))


def test_a_worker_without_a_broker_runs_what_none_has_for_two_periods() -> None:
    assert look(OTHER, T0)
    assert not look(ONE, at(1.8), reaches_broker=False)
    assert look(ONE, at(1.82), reaches_broker=False)
    assert look(ONE, at(2.8), reaches_broker=False)


# What is recorded


def test_a_run_within_the_callers_transaction_keeps_no_row_locked() -> None:
    with transaction.atomic():
        assert periodic_runs.begin([TASK]) == []
    assert not PeriodicRun.objects.exists()


def test_the_tasks_record_that_they_ran() -> None:
    for name in (TICK, RECOVER, CLEANUP):
        periodic.run(name)
    assert set(PeriodicRun.objects.values_list("name", flat=True)) == {
        TICK,
        RECOVER,
        CLEANUP,
    }


def next_transaction() -> int:
    """Return the number that the next transaction of the server will get if it writes."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
        return int(cursor.fetchone()[0])


def writes(work: Callable[[], Any], times: int = 5) -> int:
    """Return how many transactions wrote while this was done, at the least: others use the server, too."""
    found = []
    for _ in range(times):
        before = next_transaction()
        work()
        found.append(next_transaction() - before)
    return min(found)


def test_a_tick_with_nothing_to_do_writes_its_record_alone(settings: Any) -> None:
    settings.DISPATCHER = {"tick": 0.05}
    periodic.run(TICK)
    assert writes(partial(PeriodicRun.objects.update, ran_by=None)) == 1
    assert writes(partial(periodic.run, TICK)) == 1
    assert writes(engine.tick) == 0


def test_a_look_with_nothing_to_run_writes_nothing() -> None:
    look(ONE, T0)
    assert writes(partial(look, ONE, at(0.5))) == 0
