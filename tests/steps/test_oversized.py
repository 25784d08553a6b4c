"""A call that waits alone, since it costs too much: limits changed by hand, reports, the audit."""

import json
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.utils import timezone

from dispatcher import api, engine, reports
from dispatcher.audit import audit
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.request import Call
from dispatcher.states import State
from tests.builders import committed, key, states

pytestmark = [committed, pytest.mark.pooler]


def send(*costs: int, **fields: Any) -> list[CallQueue]:
    """Send calls under the key `api` together, so that a trip is what dispatches them."""
    return CallQueue.objects.send_many([Call(task="noop", keys={"api": cost}, **fields) for cost in costs])


def paused(**limits: Any) -> RateLimitKey:
    """Make a key under which calls can be sent and wait."""
    made = key("api", **limits)
    api.pause("api")
    return made


def aside() -> dict[Any, int]:
    """Return the calls that wait alone, with what they cost."""
    calls = CallQueue.objects.filter(oversized_key__isnull=False)
    return dict(calls.values_list("id", "oversized_cost"))


def test_a_limit_that_was_changed_by_hand_is_found_by_the_tick() -> None:
    paused(concurrency=5)
    RateLimitKey.objects.update(concurrency=10)
    (dear,) = send(8)
    RateLimitKey.objects.update(concurrency=5)
    api.resume("api")
    assert aside() == {dear.id: 8}
    RateLimitKey.objects.update(concurrency=8)
    engine.tick(now=timezone.now())
    assert states([dear]) == [State.DISPATCHED]


# What people do to it


def waits_alone() -> CallQueue:
    """Return a call that waits alone."""
    paused(concurrency=10)
    (dear,) = send(8)
    api.limit("api", {"concurrency": 5})
    api.resume("api")
    assert aside() == {dear.id: 8}
    return dear


# Who names it


def test_reports_and_the_audit_name_it() -> None:
    dear = waits_alone()
    (behind,) = send(1)
    (status,) = reports.rate_limit_status(["api"])
    assert (status.waiting, status.oversized, status.as_json()["oversized_count"]) == (1, 1, 1)
    assert status.waiting_since is not None
    wait = reports.why_waiting(dear.id)
    assert wait is not None
    assert (wait.oversized_for, wait.oversized_cost, wait.stopped_by, wait.ahead) == ("api", 8, None, 0)
    assert reports.why_waiting(behind.id) is None
    assert [call.id for call in reports.waiting_calls("api")] == [dear.id]
    report = audit(settle=timedelta(0))
    (found,) = [each for each in report.found if each.count]
    assert found.check.name == "oversized"
    assert found.findings[0].what == "key api"
    assert found.findings[0].facts["calls"] == 1
    assert found.findings[0].facts["cheapest_call"] == str(dear.id)
    assert audit(settle=timedelta(0), repair=True).repaired == 0
    api.limit("api", {"concurrency": 10})
    assert audit(settle=timedelta(0)).is_ok


def test_the_repair_lets_go_on_what_fits_by_now() -> None:
    dear = waits_alone()
    RateLimitKey.objects.update(concurrency=8)
    report = audit(settle=timedelta(0), repair=True)
    assert (report.is_ok, report.repaired) == (True, 1)
    assert states([dear]) == [State.DISPATCHED]


def test_the_status_shows_it() -> None:
    waits_alone()
    table, whole, document = StringIO(), StringIO(), StringIO()
    call_command("rate_limit_status", stdout=table)
    assert "Oversized" in table.getvalue()
    call_command("rate_limit_status", "--key", "api", stdout=whole)
    assert "1 of these cost more than the limits ever allow" in whole.getvalue()
    call_command("rate_limit_status", "--json", stdout=document)
    assert json.loads(document.getvalue())["items"][0]["oversized_count"] == 1


def test_waiting_calls_are_paged_with_those_that_wait_alone_in_their_places() -> None:
    paused(concurrency=10)
    calls = send(1, 8, 1, 8, 1)
    api.limit("api", {"concurrency": 5})
    api.resume("api")
    api.pause("api")
    CallQueue.objects.filter(state=State.DISPATCHED).update(
        state=State.AVAILABLE, ticket=None, dispatched_at=None, published_at=None
    )
    paged: list[Any] = []
    while page := reports.waiting_calls("api", after=paged[-1].place if paged else None, most=2):
        paged += page
    assert [call.id for call in paged] == [call.id for call in calls]
