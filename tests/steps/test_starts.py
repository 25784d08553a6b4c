"""Starts: they are kept for as long as a window may count them, and the newest of each key for good."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatcher.lifecycle import control, retention
from dispatcher.models import RateLimitKey, Start
from tests.builders import T0, at, key

pytestmark = pytest.mark.django_db


def start(name: str, now: datetime = T0, cost: int = 1) -> None:
    """Record a start of a key, as a trip does."""
    key_id = RateLimitKey.objects.get(name=name).id
    last = Start.objects.filter(key_id=key_id).order_by("at", "total").last()
    Start.objects.create(key_id=key_id, at=now, total=(last.total if last else 0) + cost, cost=cost, last_cost=cost)


def kept(name: str) -> list[datetime]:
    return [
        *Start.objects.filter(key_id=RateLimitKey.objects.get(name=name).id).order_by("at").values_list("at", flat=True)
    ]


def test_the_starts_of_a_key_that_was_deleted_are_trimmed() -> None:
    api = key("api", rate=(1_000, 3_600))
    start("api")
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM dispatcher_ratelimitkey WHERE id = %s", [api.id])
    assert retention.trim_starts(now=at(1)) == 1


def test_starts_that_no_window_counts_are_deleted_but_for_the_newest() -> None:
    key("api", rate=(9, 60))
    key("long", rate=(9, timedelta(hours=1)))
    for name in ("api", "long"):
        start(name)
        start(name, at(100))
    retention.trim_starts(now=at(119))
    assert kept("api") == kept("long") == [at(0), at(100)]
    retention.trim_starts(now=at(241))
    assert (kept("api"), kept("long")) == ([at(100)], [at(0), at(100)])
    retention.trim_starts(now=at(1_000_000))
    assert (kept("api"), kept("long")) == ([at(100)], [at(100)])


def test_a_window_of_milliseconds_is_kept_for_as_long_as_its_margin(settings: Any) -> None:
    settings.DISPATCHER = {"margin": 1}
    key("api", rate=(9, timedelta(milliseconds=1)))
    start("api")
    start("api", at(0.5))
    retention.trim_starts(now=at(1.001))
    assert len(kept("api")) == 2


@pytest.mark.parametrize("most", [1, 3])
def test_all_keys_have_their_turn_however_little_one_statement_deletes(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_BATCH", most)
    monkeypatch.setattr(retention, "_KEYS", 2)
    for number in range(5):
        key(f"key:{number}", rate=(9, 1))
        for second in range(number):
            start(f"key:{number}", at(second))
    assert retention.trim_starts(now=at(1_000)) == 0 + 0 + 1 + 2 + 3
    assert [len(kept(f"key:{number}")) for number in range(5)] == [0, 1, 1, 1, 1]


periods = st.sampled_from([0.5, 1, 7, 60])
events = st.lists(
    st.one_of(
        st.tuples(st.just("start"), st.sampled_from([0, 0.004, 0.3, 1.2, 2.5, 20, 149.9, 150])),
        st.tuples(st.just("override"), periods),
        st.tuples(st.just("end"), st.just(0)),
        st.tuples(st.just("trim"), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(periods, events)
def test_no_start_is_deleted_that_still_counts(period: float, history: list[tuple[str, float]]) -> None:
    Start.objects.all().delete()
    RateLimitKey.objects.all().delete()
    key("api", rate=(10_000, period))
    starts: list[datetime] = []
    now, longest, known_from = T0, period, datetime.min.replace(tzinfo=T0.tzinfo)
    for event, amount in history:
        match event:
            case "start":
                now += timedelta(seconds=amount)
                start("api", now)
                starts.append(now)
            case "override":
                control.override("api", {"rate": (10_000, amount)}, at(1_000_000))
                # What no window counted so far may be gone, and a longer one can't bring it back.
                known_from = max(known_from, now - timedelta(seconds=longest))
                longest = max(period, amount)
            case "end":
                control.end_override("api")
                longest = period
            case _:
                retention.trim_starts(now=now)
        since = max(now - timedelta(seconds=longest), known_from)
        assert {each for each in starts if each > since} <= {*kept("api")}
        assert starts[-1:] == kept("api")[-1:]
