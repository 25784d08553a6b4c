"""Periodic runs: who runs the dispenser's tasks where nothing asks for them, and what is recorded of it."""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from django.db import connection, transaction

from dispatcher import engine
from dispatcher.celery import periodic
from dispatcher.lifecycle import heartbeat, periodic_runs
from dispatcher.lifecycle.periodic_runs import CLEANUP, RECOVER, TICK, Periodic
from dispatcher.models import PeriodicRun
from tests.builders import HERE, T0, at, committed
from tests.races.lockstep import at_once

pytestmark = committed

ONE, OTHER = UUID(int=1), UUID(int=2)
TASK = Periodic(name=TICK, every=timedelta(seconds=1))


def look(
    worker: UUID, now: datetime, *, is_dispenser: bool = True, is_prompt: bool = False, task: Periodic = TASK
) -> bool:
    """Let a worker look; return whether it is to run the task by itself."""
    taken = periodic_runs.take_over([task], worker=worker, is_dispenser=is_dispenser, is_prompt=is_prompt, now=now)
    return taken == [task.name]


def ran(now: datetime, *, worker: UUID | None = None) -> None:
    periodic_runs.record(TASK, worker=worker, now=now)


def recorded() -> tuple[datetime | None, UUID | None]:
    run = PeriodicRun.objects.get(name=TICK)
    return run.ran_at, run.ran_by


# Taking over


def test_a_task_that_beat_asks_for_is_left_to_it() -> None:
    for second in range(30):
        ran(at(second))
        assert not look(ONE, at(second + 0.5))


def test_a_task_that_nothing_has_run_for_some_periods_is_taken_over() -> None:
    ran(T0)
    assert not look(ONE, at(6))
    assert look(ONE, at(6.1))
    assert recorded() == (at(6.1), ONE)


def test_a_task_that_never_ran_is_taken_over_some_periods_after_the_first_look() -> None:
    assert not look(ONE, T0)
    assert recorded() == (None, None)
    assert not look(ONE, at(6))
    assert look(ONE, at(6.1))


def test_a_task_that_was_taken_over_stays_with_its_worker_until_it_is_asked_for() -> None:
    ran(T0)
    assert look(ONE, at(7))
    for second in range(8, 30):
        ran(at(second), worker=ONE)
        assert look(ONE, at(second))
        assert not look(OTHER, at(second))
    ran(at(30))
    assert recorded() == (at(30), None)
    assert not look(ONE, at(30))


def test_the_task_of_a_worker_that_died_is_taken_over_again() -> None:
    ran(T0)
    assert look(ONE, at(7))
    assert not look(OTHER, at(13))
    assert look(OTHER, at(13.1))
    assert not look(ONE, at(13.2))


def test_of_workers_that_look_at_once_one_takes_over() -> None:
    ran(T0)
    for _ in range(10):
        PeriodicRun.objects.update(ran_at=T0, ran_by=None)
        taken = at_once(*[partial(look, UUID(int=number), at(60)) for number in range(1, 7)])
        assert sum(taken) == 1


def test_a_worker_that_looks_while_another_takes_over_does_not_wait() -> None:
    ran(T0)
    with transaction.atomic():
        PeriodicRun.objects.select_for_update().get(name=TICK)
        assert at_once(partial(look, ONE, at(60))) == [False]


def test_a_record_from_the_future_holds_no_worker_off() -> None:
    ran(at(3600))
    assert look(ONE, T0)
    ran(at(3600))
    ran(T0)
    assert recorded() == (T0, None)


def test_cleanup_waits_for_a_schedule_of_once_a_week() -> None:
    (cleanup,) = (task for task in periodic_runs.periodic() if task.name == CLEANUP)
    periodic_runs.record(cleanup, now=T0)
    assert not look(ONE, T0 + timedelta(days=7, hours=12), task=cleanup)
    assert look(ONE, T0 + timedelta(days=8, hours=1), task=cleanup)


def test_a_worker_of_direct_queues_takes_over_at_once_what_never_ran() -> None:
    assert look(ONE, T0, is_prompt=True)
    assert recorded() == (T0, ONE)
    assert not look(OTHER, at(1), is_prompt=True)
    assert look(ONE, at(1), is_prompt=True)


def test_a_worker_of_direct_queues_takes_over_at_once_what_another_found_first() -> None:
    assert not look(OTHER, T0)
    assert look(ONE, at(0.1), is_prompt=True)


def test_a_worker_of_direct_queues_takes_over_at_once_from_one_that_has_stopped() -> None:
    stopped = serve(["celery"], T0)
    assert look(stopped, T0, is_prompt=True)
    assert not look(ONE, at(1), is_prompt=True)
    heartbeat.mark_stopped(stopped, now=at(1))
    assert not look(ONE, at(1.1))
    assert look(ONE, at(1.1), is_prompt=True)


def test_a_worker_of_direct_queues_waits_for_a_schedule_of_the_cleanup() -> None:
    (cleanup,) = (task for task in periodic_runs.periodic() if task.name == CLEANUP)
    assert not look(ONE, T0, task=cleanup, is_prompt=True)
    assert not look(ONE, T0 + timedelta(days=7), task=cleanup, is_prompt=True)
    assert look(ONE, T0 + timedelta(days=8, hours=1), task=cleanup, is_prompt=True)


# Whose turn it is


def serve(queues: list[str], now: datetime) -> UUID:
    """Register a worker of these queues; return its id."""
    worker = heartbeat.WorkerInfo(**{**HERE.__dict__, "id": uuid4(), "queues": queues})
    heartbeat.record(worker, [], now=now)
    return worker.id


def test_a_worker_of_other_queues_leaves_it_to_one_that_takes_the_dispensers_queue() -> None:
    ran(T0)
    serve(["dispatcher"], at(5))
    assert not look(ONE, at(10), is_dispenser=False)
    assert look(OTHER, at(10), is_dispenser=True)


def test_a_worker_of_other_queues_takes_over_where_no_live_worker_takes_the_dispensers_queue() -> None:
    ran(T0)
    serve(["celery"], at(5))
    heartbeat.mark_stopped(serve(["dispatcher"], at(5)), now=at(6))
    assert look(ONE, at(10), is_dispenser=False)


def test_a_worker_of_other_queues_takes_over_from_one_that_runs_nothing_for_a_lease() -> None:
    ran(T0)
    serve(["dispatcher"], at(65))
    assert not look(ONE, at(66), is_dispenser=False)
    assert look(ONE, at(66.1), is_dispenser=False)


def test_a_worker_of_other_queues_gives_the_task_back_when_a_dispenser_comes() -> None:
    ran(T0)
    assert look(ONE, at(10), is_dispenser=False)
    serve(["dispatcher"], at(11))
    assert not look(ONE, at(12), is_dispenser=False)
    assert look(OTHER, at(17), is_dispenser=True)


# What is recorded


def test_a_run_every_second_is_recorded_every_few() -> None:
    ran(T0)
    for second, last in ((1, 0), (3, 0), (3.1, 3.1), (6, 3.1)):
        ran(at(second))
        assert recorded() == (at(last), None)


def test_a_run_within_the_callers_transaction_keeps_no_row_locked() -> None:
    with transaction.atomic():
        ran(T0)
    assert not PeriodicRun.objects.exists()


def test_the_tasks_record_that_they_ran() -> None:
    for name in (TICK, RECOVER, CLEANUP):
        periodic.run(name)
    assert set(PeriodicRun.objects.filter(ran_at__isnull=False).values_list("name", flat=True)) == {
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


def test_a_tick_with_nothing_to_do_writes_nothing(settings: Any) -> None:
    settings.DISPATCHER = {"tick": 0.05}
    periodic.run(TICK)
    assert writes(partial(PeriodicRun.objects.update, ran_by=None)) == 1
    assert writes(partial(periodic.run, TICK)) == 0


def test_a_look_with_nothing_to_take_over_writes_nothing() -> None:
    look(ONE, T0)
    assert writes(partial(look, ONE, at(1))) == 0


def test_extras_are_run_only_where_there_is_something_for_them() -> None:
    assert {task.name for task in periodic._wanted()} == {TICK, RECOVER, CLEANUP}  # noqa: SLF001 -- what workers ask
    assert engine.tick(now=T0) == 0
