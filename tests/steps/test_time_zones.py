"""Times without `USE_TZ`, in a zone with summer time: an hour that comes twice, and a day of 23 hours."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from pytest_django import Settings

from dispatcher import ending, engine, sql
from dispatcher.engine import ends
from dispatcher.lifecycle import claim, control, retention, schedule
from dispatcher.lifecycle.finish import Ended
from dispatcher.lifecycle.run import Returned
from dispatcher.models import CallQueue, RateLimitKey, Start
from dispatcher.reports import rate_limit_status
from dispatcher.states import State
from tests.builders import SECOND, admitted, committed, go, key, seen, started, ticket_of, waiting
from tests.clock import stopped_clock

pytestmark = [committed, pytest.mark.pooler, pytest.mark.django]

HOUR = timedelta(hours=1)
SUMMER_ENDS = datetime(2030, 10, 27, 1, tzinfo=UTC)
"""From then on, the hour that was shown just before is shown once more."""
SUMMER_BEGINS = datetime(2030, 3, 31, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _berlin(settings: Settings) -> Iterator[None]:
    """Connect as a project does that has no USE_TZ."""
    settings.USE_TZ = False
    settings.TIME_ZONE = "Europe/Berlin"
    connection.close()
    yield
    connection.close()


def test_a_window_that_begins_in_the_summer_is_over_in_time() -> None:
    key("api", rate=(1, 1))
    started("api", now=SUMMER_ENDS - SECOND / 2)
    call = waiting("api")
    assert go(call, now=SUMMER_ENDS) == []
    with stopped_clock(SUMMER_ENDS + SECOND / 10) as clock:
        assert engine.tick(now=clock.now) == 0
        clock.forward(1)
        assert engine.tick(now=clock.now) == 1
    assert seen(call).state == State.DISPATCHED


def test_a_throttle_keeps_its_spacing_over_the_end_of_the_summer() -> None:
    key("api", throttle=(1, 10))
    started("api", now=SUMMER_ENDS - SECOND)
    call = waiting("api")
    assert go(call, now=SUMMER_ENDS) == []
    assert go(call, now=SUMMER_ENDS + 9 * SECOND) == [call.id]
    with stopped_clock(SUMMER_ENDS + 9 * SECOND):
        made = claim.claim(call.id, ticket_of(seen(call)))
    assert isinstance(made, claim.Claimed)
    assert made.start_at.utcoffset() == timedelta(0)
    assert timedelta(0) <= made.start_at - (SUMMER_ENDS + 9 * SECOND) <= SECOND / 10


def test_a_block_and_an_override_end_in_time() -> None:
    key("api", concurrency=9)
    control.block(2 * SECOND, names=["api"], now=SUMMER_ENDS - SECOND)
    control.override("api", {"concurrency": 0}, SUMMER_ENDS + 2 * SECOND)
    call = waiting("api")
    assert go(call, now=SUMMER_ENDS) == []
    (status,) = rate_limit_status(["api"], now=SUMMER_ENDS)
    assert (status.blocked_until, status.overridden_until) == (SUMMER_ENDS + SECOND, SUMMER_ENDS + 2 * SECOND)
    with stopped_clock(SUMMER_ENDS + 60 * SECOND) as clock:
        assert engine.tick(now=clock.now) == 1


@pytest.mark.parametrize("days", [1, 7])
def test_a_window_of_days_holds_over_the_day_that_has_23_hours(days: int) -> None:
    key("api", rate=(1, days * 86_400))
    begun = SUMMER_BEGINS - 13 * HOUR
    started("api", now=begun)
    retention.trim_starts(now=begun + days * 24 * HOUR)
    call = waiting("api")
    assert go(call, now=begun + days * 24 * HOUR - HOUR / 2) == []
    assert go(call, now=begun + days * 24 * HOUR + SECOND) == [call.id]


def test_a_wait_of_a_day_is_24_hours() -> None:
    call = started(now=SUMMER_BEGINS - 13 * HOUR)
    failed = ending.failed(ValueError(), attempt=1, policy=None, wait=timedelta(days=1))
    with stopped_clock(SUMMER_BEGINS - 13 * HOUR):
        assert ends.record([Ended(call_id=call.id, ticket=ticket_of(call), claim_id=call.claim, ending=failed)])
    assert schedule.wake_due(now=SUMMER_BEGINS + 11 * HOUR - SECOND) == 0
    assert schedule.wake_due(now=SUMMER_BEGINS + 11 * HOUR) == 1


def test_periods_are_stored_as_they_were_given() -> None:
    key("api", rate=(5, 86_400), throttle=(1, "PT1.5S"))
    api = RateLimitKey.objects.get()
    assert (api.rate_period, api.throttle_period) == (timedelta(days=1), SECOND * 1.5)


def test_times_of_rows_have_a_zone_also_in_the_hour_that_comes_twice() -> None:
    call, at = waiting(), SUMMER_ENDS + HOUR / 2
    for each in (at - HOUR, at):
        CallQueue.objects.filter(id=call.id).update(scheduled_at=each)
        assert seen(call).scheduled_at - each == timedelta(0)


def test_a_call_runs_and_its_times_are_those_of_the_database() -> None:
    key("api", rate=(9, 60))
    call = waiting("api")
    assert engine.dispense() == 1
    assert engine.execute(call.id, ticket_of(seen(call)), lambda: 7) == Returned(result=7)
    assert abs(sql.now() - datetime.now(UTC)) < HOUR / 2
    assert engine.recover() == 0
    assert Start.objects.count() == 1
    assert admitted().state == State.DISPATCHED
