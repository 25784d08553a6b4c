"""Leases are judged in the end, however rare looks are, and never for a time in which they could not be renewed."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.utils import timezone

from dispatcher import engine
from dispatcher.lifecycle import recover
from dispatcher.models import LeaseCheck, Slot
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
