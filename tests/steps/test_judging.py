"""Leases are judged in the end, however rare looks are, and never for a time in which they could not be renewed."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.utils import timezone

from dispatcher import engine
from dispatcher.lifecycle import recover, schedule
from dispatcher.models import CallQueue, LeaseCheck, Slot
from dispatcher.ojs import fetch, pull_workers, queues
from dispatcher.ojs.fetch import FetchRequest
from dispatcher.ojs.reclaim import reclaim
from dispatcher.states import State
from tests.builders import at, committed, renew, started, states, ticket_of

pytestmark = committed

SECOND = timedelta(seconds=1)
QUICK = {"heartbeat": 0.05, "run_lease": 0.1}
"""Then looks a second apart are rare ones."""


def over(seconds: float) -> list[UUID]:
    """Look at the leases as recovery does, and return whose are judged to be over."""
    until = recover.judged_until(now=at(seconds))
    return [] if until is None else [left.call_id for left in recover.expired(now=until)]


@pytest.mark.parametrize("every", [31, 60, 300, 3_600])
def test_a_lease_is_judged_at_the_second_look_that_sees_it_over_however_rare_looks_are(every: int) -> None:
    over(0)
    call = started(now=at(1))
    over_at = 1 + 60
    looks = [every * number for number in range(1, 200)]
    first = next(look for look in looks if look > over_at)
    judged = next(look for look in looks if over(look) == [call.id])
    assert judged == first + every


def test_a_lease_that_is_renewed_between_rare_looks_is_not_judged() -> None:
    call = started(now=at(0))
    for look in range(300, 3_000, 300):
        for second in range(look - 300, look, 15):
            renew([(call.id, ticket_of(call))], now=at(second))
        assert over(look) == []


@pytest.mark.parametrize("every", [10, 300])
def test_a_lease_that_ran_out_while_the_database_was_away_is_given_time(every: int) -> None:
    call = started(now=at(0))
    for look in range(0, 601, every):
        renew([(call.id, ticket_of(call))], now=at(look))
        assert over(look) == []
    # For ten minutes nothing could renew or recover.
    assert over(1_200) == []
    assert over(1_210) == []
    renew([(call.id, ticket_of(call))], now=at(1_215))
    assert over(1_220) == over(1_230) == over(1_240) == []


def test_a_lease_without_renewal_after_an_outage_is_judged_two_heartbeats_later() -> None:
    over(0)
    call = started(now=at(0))
    assert next(look for look in range(1_200, 1_300, 10) if over(look) == [call.id]) == 1_230


def test_looks_that_are_further_apart_than_a_lease_count_as_gaps_whatever_the_schedule_says(settings: Any) -> None:
    settings.DISPATCHER = {"recover_every": 300}
    over(0)
    over(300)
    started(now=at(301))
    assert over(600) == [], "the database may have been away since"


def looked(ago: timedelta) -> None:
    """Let the latest look, after a gap, have been so long ago."""
    at_that_time = timezone.now() - ago
    LeaseCheck.objects.update_or_create(id=1, defaults={"checked_at": at_that_time, "since": at_that_time})


def test_a_recovery_that_runs_rarely_puts_back_what_a_dead_worker_held(settings: Any) -> None:
    settings.DISPATCHER = QUICK
    call = started()
    looked(SECOND)
    Slot.objects.update(lease_until=timezone.now() - SECOND / 2)
    assert engine.recover() == 0
    assert states([call]) == [State.ACTIVE]
    looked(SECOND / 4)
    assert engine.recover() == 1
    assert states([call]) != [State.ACTIVE]


# Over HTTP


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
    CallQueue.objects.update(timeout=SECOND, started_at=timezone.now() - 60 * SECOND)
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
