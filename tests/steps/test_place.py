"""Place: a call that has no lane yet is counted, reported and found as any other."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from dispatcher import engine, reports
from dispatcher.audit import audit
from dispatcher.lifecycle import place
from dispatcher.models import CallQueue
from dispatcher.states import State
from tests.builders import committed, key, seen, states, waiting
from tests.faults import dying, manual

pytestmark = [committed, pytest.mark.pooler, pytest.mark.django]


@pytest.fixture(autouse=True)
def _templates(settings: Any) -> None:
    settings.DISPATCHER = {"keys": {"tenant:*": {"concurrency": 3}}}


def unplaced(*keys: str, **fields: Any) -> CallQueue:
    """Send a call as a process does that dies before it has made the lane."""
    with dying():
        return CallQueue.objects.send("noop", keys=keys or ["tenant:new"], **fields)


# Placed


def test_the_hook_of_a_send_within_a_test_s_transaction_places_its_calls(
    django_capture_on_commit_callbacks: Callable[..., Any],
) -> None:
    with transaction.atomic():
        with django_capture_on_commit_callbacks(execute=True):
            call = CallQueue.objects.send("noop", keys=["tenant:new"])
        assert seen(call).lane_id is not None
        transaction.set_rollback(True)


# What is reported of it


def test_reports_count_and_list_calls_without_a_lane() -> None:
    key("api", concurrency=0)
    key("queue:mail")
    first = waiting("api", queue="mail")
    engine.tick()
    second = unplaced("api", "tenant:new", queue="mail", priority=1)
    third = unplaced("api", "tenant:new", queue="mail")
    for name in ("api", "queue:mail"):
        (status,) = reports.rate_limit_status([name])
        assert status.waiting == 3
        listed = reports.waiting_calls(name, most=2)
        assert [call.id for call in listed] == [second.id, first.id]
        assert [call.id for call in reports.waiting_calls(name, after=listed[-1].place)] == [third.id]
        assert [call.id for call in reports.waiting_calls(name, after=listed[0].place)] == [first.id, third.id]
    costs = [(cost.name, cost.cost) for cost in reports.costs(second.id)]
    assert costs == [("api", 1), ("queue:mail", 1), ("tenant:new", 1)]


def test_why_a_call_without_a_lane_waits() -> None:
    wait = reports.why_waiting(unplaced().id)
    assert wait is not None
    assert (wait.is_placed, wait.stopped_by, wait.ahead) == (False, None, 0)
    placed = reports.why_waiting(waiting().id)
    assert placed is not None
    assert placed.is_placed


def test_the_audit_finds_a_call_that_stays_without_a_lane_and_repairs_it() -> None:
    call = unplaced()
    CallQueue.objects.update(created_at=timezone.now() - timedelta(minutes=1))
    found = {each.check.name: each.count for each in audit(settle=timedelta(0)).found if each.count}
    assert found == {"unserved": 1}
    assert audit(settle=timedelta(0), repair=True).is_ok
    assert states([call]) == [State.DISPATCHED]


def test_the_audit_finds_no_call_that_was_sent_just_now() -> None:
    unplaced()
    assert audit(settle=timedelta(0)).is_ok


# Autocommit off


def test_with_autocommit_off_the_planner_settings_of_the_caller_stay_as_they_are() -> None:
    with manual(), connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('enable_seqscan'), current_setting('lock_timeout')")
        before = cursor.fetchone()
        engine.dispense()
        place.place([unplaced().id], lock_wait=timedelta(seconds=1))
        cursor.execute("SELECT current_setting('enable_seqscan'), current_setting('lock_timeout')")
        assert cursor.fetchone() == before
