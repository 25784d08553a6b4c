"""Windows: the rows of a window are used again and again, and forget no start that still counts."""

from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatcher.lifecycle import claim, control, finish, retention
from dispatcher.limits.policy import BUCKETS
from dispatcher.models import RateLimitKey, Slot, Window
from tests.builders import SECOND, T0, at, go, key, seen, started, ticket_of, waiting

pytestmark = pytest.mark.django_db

LAP = 2.5
"""Periods."""


def counted(since: datetime) -> int:
    """Return what the window of `api` counts from then on."""
    return sum(Window.objects.filter(last_start_at__gt=since).values_list("cost", flat=True))


def test_the_next_lap_uses_the_rows_of_the_last_one_again() -> None:
    key("api", rate=(10, 60))
    started("api")
    started("api", now=at(60 * LAP))
    assert Window.objects.values_list("cost", "last_start_at").get() == (1, at(60 * LAP))


def test_a_busy_window_has_no_more_rows_than_places_and_nothing_to_delete() -> None:
    key("api", rate=(10_000, 1))
    for turn in range(260):
        started("api", now=at(turn * 0.01))
        assert retention.trim_windows(now=at(turn * 0.01)) == 0
    assert Window.objects.count() == LAP * BUCKETS


def test_an_override_with_a_shorter_period_forgets_nothing_of_the_longer_one() -> None:
    key("api", rate=(100, 60))
    control.override("api", {"rate": (10, 1)}, at(3_600))
    for second in range(60):
        started("api", now=at(second))
        retention.trim_windows(now=at(second))
    assert counted(at(59) - SECOND) == 1
    assert counted(at(60) - 60 * SECOND) == 59


def test_parts_that_a_change_of_the_period_brings_to_one_place_count_together() -> None:
    key("api", rate=(100, 60))
    # Place 200 of the parts of 0.6 s, and in the next lap of those of 0.01 s.
    started("api", now=at(120))
    control.override("api", {"rate": (10, 1)}, at(3_600))
    started("api", now=at(152))
    assert Window.objects.values_list("place", "cost", "last_start_at").get() == (200, 2, at(152))


def test_a_start_that_lies_ahead_takes_over_nothing_that_still_counts() -> None:
    key("api", rate=(10, 1))
    started("api")
    call = waiting("api")
    go(call, now=at(0.8))
    claim_id, ticket = uuid4(), ticket_of(seen(call))
    claim.claim(call.id, ticket, claim_id=claim_id, now=at(0.8))
    # It was late again and again: its window counts the latest that it may start now, a lap after the first start.
    claim.restart(call.id, ticket, claim_id=claim_id, slack=1.6 * SECOND, now=at(0.9))
    assert counted(at(0.9) - SECOND) == 3


def test_an_override_with_a_longer_period_forgets_nothing_of_its_own() -> None:
    key("api", rate=(100, 1))
    control.override("api", {"rate": (100, 60)}, at(3_600))
    for second in range(60):
        started("api", now=at(second))
    assert counted(at(60) - 60 * SECOND) == 59


def test_the_starts_of_an_override_without_a_rate_count_when_it_has_ended() -> None:
    key("api", rate=(2, 60))
    control.override("api", {"rate": None}, at(30))
    for _ in range(3):
        started("api", now=at(1))
    call = waiting("api")
    assert go(call, now=at(31)) == []
    assert go(call, now=at(61.1)) == [call.id]


def test_a_rate_that_an_override_adds_counts_from_then_on() -> None:
    key("api")
    started("api", now=at(0))
    control.override("api", {"rate": (1, 60)}, at(3_600))
    started("api", now=at(1))
    call = waiting("api")
    assert go(call, now=at(60.9)) == []
    assert go(call, now=at(61.1)) == [call.id]


def test_a_window_shorter_than_the_margin_counts_its_starts_for_as_long_as_that(settings: Any) -> None:
    settings.DISPATCHER = {"margin": 10}
    key("api", rate=(100, 1))
    for second in range(10):
        started("api", now=at(second))
        retention.trim_windows(now=at(second))
    assert counted(at(10) - 11 * SECOND) == 10


def test_the_windows_are_trimmed_slice_by_slice_and_from_the_front_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_SLICE", 10)
    many, few = key("many", rate=(1_000, 1)), key("few", rate=(1_000, 3_600))
    for turn in range(25):
        started("many", now=at(turn * 0.01))
        started("few", now=at(turn * 40))
    later = at(1_000)
    trimmed = [retention.trim_windows(now=later) for _ in range(6)]
    assert max(trimmed) == 10
    assert sum(trimmed) == 25
    assert not Window.objects.filter(key=many).exists()
    assert sum(Window.objects.filter(key=few).values_list("cost", flat=True)) == 25
    started("many", now=later)
    assert sum(retention.trim_windows(now=at(2_000)) for _ in range(4)) == 1


def test_the_windows_of_a_key_that_was_deleted_are_trimmed() -> None:
    api = key("api", rate=(1_000, 3_600))
    started("api")
    connection.check_constraints()
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM dispatcher_ratelimitkey WHERE id = %s", [api.id])
    assert retention.trim_windows(now=at(1)) == 1


@pytest.mark.parametrize("settle", ["claim", "finish"])
def test_all_who_count_a_start_take_over_what_is_old(settle: str) -> None:
    key("api", rate=(10, 60))
    started("api")
    call = waiting("api")
    later = at(60 * LAP)
    go(call, now=later)
    if settle == "claim":
        claim.claim(call.id, ticket_of(seen(call)), now=later)
    else:
        finish.complete(call.id, ticket_of(seen(call)), result=None, now=later)
    assert Window.objects.values_list("cost", "last_start_at").get() == (1, later)


periods = st.sampled_from([0.5, 1, 7, 60])
events = st.lists(
    st.one_of(
        st.tuples(st.just("start"), st.sampled_from([0, 0.004, 0.3, 1.2, 2.5, 20, 149.9, 150])),
        st.tuples(st.just("override"), periods),
        st.tuples(st.just("end"), st.just(0)),
        st.tuples(st.just("trim"), st.just(0)),
        st.tuples(st.just("back"), st.sampled_from([0.004, 0.5, 1, 7, 150])),
    ),
    max_size=40,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(periods, events)
def test_no_window_forgets_a_start_that_still_counts(period: float, history: list[tuple[str, float]]) -> None:
    Slot.objects.all().delete()
    Window.objects.all().delete()
    RateLimitKey.objects.all().delete()
    key("api", rate=(10_000, period))
    starts: list[datetime] = []
    now, latest, longest, known_from = T0, T0, period, T0 - SECOND
    for event, amount in history:
        match event:
            case "start":
                now += timedelta(seconds=amount)
                latest = max(latest, now)
                started("api", now=now)
                starts.append(now)
            case "override":
                control.override("api", {"rate": (10_000, amount)}, at(1_000_000))
                # What is older than two of the periods so far may be forgotten, and a longer one can't bring it back.
                known_from = max(known_from, latest - 2 * timedelta(seconds=longest))
                longest = max(period, amount)
            case "end":
                control.end_override("api")
                longest = period
            case "back":
                now -= timedelta(seconds=amount)
            case _:
                retention.trim_windows(now=now)
        for length in {period, longest}:
            # The database's clock may be set back: by more than a period, what it has shown to be over stays forgotten.
            since = max(now - timedelta(seconds=length), latest - 2 * timedelta(seconds=longest), known_from)
            assert counted(since) >= sum(start > since for start in starts)
