"""The systems that bench-scale compares are sound ones, and a figure that is given up leaves nothing behind."""

from dataclasses import replace
from unittest import mock

import pytest
from django.db import connection

from bench.scale.sizes import SMALL
from bench.scale.systems import System
from dispatcher import engine
from dispatcher.audit import audit
from dispatcher.lifecycle import publish
from dispatcher.models import CallQueue, Lane, LaneSite, RateLimitKey, Slot
from project.time_limit import GaveUp, within
from tests.builders import committed

pytestmark = pytest.mark.ojs

SIZE = replace(SMALL, tenants=200, waiting=4_000, ended=100, lanes=3, due=10, parked=3, more_ended=10)
PREPARED = ("work", "due_now", "expired_now", "ended_long_ago", "widen_hot", "open_hot")
"""What is run on a system between two samples."""


@pytest.fixture
def system(db: None) -> System:
    # Those that the project's settings name.
    RateLimitKey.objects.all().delete()
    system = System("default", SIZE)
    system.run("fill")
    return system


def test_what_it_is_filled_with_breaks_no_invariant(system: System) -> None:
    report = audit(pause=lambda _: None)
    assert [(found.check.name, found.count) for found in report.found if found.count] == []


def test_it_is_as_large_as_it_says(system: System) -> None:
    waiting = CallQueue.objects.filter(state__in=("available", "scheduled"))
    assert RateLimitKey.objects.filter(name__startswith="tenant:").count() == SIZE.tenants
    assert Lane.objects.filter(id__lte=SIZE.tenants).count() == SIZE.tenants
    assert waiting.count() == SIZE.waiting
    assert CallQueue.objects.ended().count() == SIZE.ended
    assert waiting.filter(lane_id=1).count() == SIZE.waiting * 9 // 20


def test_every_variant_can_be_made(system: System) -> None:
    for statements in ("parked", "due", "expiring", "ended", "lanes"):
        before = CallQueue.objects.count() + Lane.objects.count()
        system.run(statements)
        assert CallQueue.objects.count() + Lane.objects.count() > before
    for statements in ("awake", "wake_again"):
        system.run(statements)
    assert LaneSite.objects.filter(queue="awake", place=0).count() == SIZE.lanes


def test_what_a_figure_leaves_behind_is_settled_before_the_next(system: System) -> None:
    system.run("parked")
    slots, waiting = Slot.objects.count(), CallQueue.objects.waiting().count()
    for statements in PREPARED:
        system.run(statements)
    with mock.patch.object(publish, "publish", return_value=0):
        engine.dispense(keys=[RateLimitKey.objects.get(name="hot").pk])
    assert Slot.objects.count() > slots
    system.settle()
    expired = CallQueue.objects.filter(expires_at__isnull=False).count()
    assert Slot.objects.count() == slots
    assert CallQueue.objects.waiting().count() - expired == waiting


@committed
def test_a_statement_that_is_given_up_does_not_go_on() -> None:
    with pytest.raises(GaveUp), within(0.1), connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(60)")
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'SELECT pg_sleep%'")
        assert cursor.fetchone() == (0,)
