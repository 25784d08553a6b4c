"""Reclaim: fetched calls whose leases ran out are judged as those of Celery's workers are."""

from datetime import timedelta
from typing import Any
from uuid import UUID

from django.utils import timezone

from dispatcher import engine
from dispatcher.lifecycle import recover, schedule
from dispatcher.models import CallQueue, LeaseCheck, Slot
from dispatcher.ojs import fetch, pull_workers, queues
from dispatcher.ojs.fetch import FetchRequest
from dispatcher.ojs.models import Job
from dispatcher.ojs.reclaim import reclaim
from dispatcher.states import State
from tests.builders import at, committed, states

pytestmark = committed

SECOND = timedelta(seconds=1)
QUICK = {"heartbeat": 0.05, "run_lease": 0.1}
"""Then looks a second apart are rare ones."""


def over(seconds: float) -> list[UUID]:
    """Look at the leases as recovery does, and return whose are judged to be over."""
    until = recover.judged_until(now=at(seconds))
    return [] if until is None else [left.call_id for left in recover.expired(now=until)]


def looked(ago: timedelta) -> None:
    """Let the latest look, after a gap, have been so long ago."""
    at_that_time = timezone.now() - ago
    LeaseCheck.objects.update_or_create(id=1, defaults={"checked_at": at_that_time, "since": at_that_time})


def fetched(**fields: Any) -> CallQueue:
    queues.open_queue("jobs")
    CallQueue.objects.send("noop", queue="jobs", **fields)
    (call,) = fetch.fetch(FetchRequest(queues=["jobs"], worker="one"))
    return call


def let_run_out(ago: timedelta) -> None:
    Slot.objects.update(pulled_until=timezone.now() - ago)


def test_a_fetched_call_whose_lease_ran_out_is_taken_back_by_the_next_tick() -> None:
    fetched()
    assert reclaim() == 0
    let_run_out(SECOND)
    assert reclaim() == 1


def test_a_tick_looks_at_leases_only_where_one_is_over() -> None:
    fetched()
    reclaim()
    assert not LeaseCheck.objects.exists()


def test_the_lease_of_a_fetched_call_that_ran_out_while_no_recovery_ran_is_given_time() -> None:
    call = fetched()
    looked(300 * SECOND)
    let_run_out(60 * SECOND)
    assert reclaim() == 0
    assert pull_workers.heartbeat("one", [call.id]).kept == [call.id]
    assert reclaim() == 0
    let_run_out(60 * SECOND)
    LeaseCheck.objects.update(checked_at=timezone.now(), since=timezone.now() - 60 * SECOND)
    assert reclaim() == 1


def test_a_recovery_that_runs_rarely_takes_back_fetched_calls_without_a_tick(settings: Any) -> None:
    settings.DISPATCHER = QUICK
    call = fetched()
    looked(SECOND / 2)
    let_run_out(SECOND)
    engine.recover()
    assert states([call]) == [State.AVAILABLE]


def test_a_heartbeat_that_comes_late_does_not_give_an_attempt_more_time_than_it_has() -> None:
    call = fetched()
    Job.objects.create(call=call, created_at=call.created_at, timeout=SECOND)
    CallQueue.objects.update(started_at=timezone.now() - 60 * SECOND)
    let_run_out(59 * SECOND)
    assert pull_workers.heartbeat("one", [call.id]).kept == []


def test_a_tick_does_not_look_again_and_again_at_leases_that_may_not_be_judged() -> None:
    fetched()
    looked(300 * SECOND)
    let_run_out(60 * SECOND)
    reclaim()
    checked_at = LeaseCheck.objects.get().checked_at
    reclaim()
    assert LeaseCheck.objects.get().checked_at == checked_at
    wait = schedule.next_due()
    assert wait is not None
    assert SECOND / 2 < wait <= SECOND
