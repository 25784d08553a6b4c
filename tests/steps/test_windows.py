"""Windows: the rows of a window are used again and again, and forget no start that still counts."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatcher import engine
from dispatcher.lifecycle import control, retention
from dispatcher.models import RateLimitKey, Slot, Window
from tests.builders import SECOND, T0, at, key, started

pytestmark = pytest.mark.django_db


def counted(since: datetime) -> int:
    """Return what the window of `api` counts from then on."""
    return sum(Window.objects.filter(last_start_at__gt=since).values_list("cost", flat=True))


def test_the_windows_of_a_key_that_was_deleted_are_trimmed() -> None:
    api = key("api", rate=(1_000, 3_600))
    started("api")
    connection.check_constraints()
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM dispatcher_ratelimitkey WHERE id = %s", [api.id])
    assert retention.trim_windows(now=at(1)) == 1


def test_parts_of_windows_that_can_no_longer_count_are_forgotten() -> None:
    key("api", rate=(9, 60))
    key("long", rate=(9, timedelta(hours=1)))
    started("api", "long")
    started("api", now=at(100))
    engine.recover(now=at(239))
    assert Window.objects.count() == 3
    engine.recover(now=at(241))
    assert sorted(Window.objects.values_list("key__name", "last_start_at")) == [
        ("api", at(100)),
        ("long", at(0)),
    ]
    engine.recover(now=at(14_401))
    assert not Window.objects.exists()


def test_a_window_of_milliseconds_is_kept_for_as_long_as_its_margin(settings: Any) -> None:
    settings.DISPATCHER = {"margin": 1}
    key("api", rate=(9, timedelta(milliseconds=1)))
    started("api")
    engine.recover(now=at(1.001))
    assert Window.objects.exists()


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
