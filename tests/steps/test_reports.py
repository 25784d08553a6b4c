"""Reports: they say what a trip would do."""

import pytest
from django.db import connection

from dispatcher import reports
from dispatcher.models import Queue
from dispatcher.reports import KeyState
from tests.builders import T0, admitted, at, go, key, started, waiting

pytestmark = pytest.mark.django_db(transaction=True)


def status(name: str = "api", **options: object) -> reports.KeyStatus:
    (found,) = reports.rate_limit_status([name], **options)  # type: ignore[arg-type]
    return found


def test_running_and_admitted_are_counted_apart() -> None:
    key("api", concurrency=3)
    started("api")
    admitted("api")
    found = status(now=T0)
    assert (found.running, found.admitted, found.in_flight) == (1, 1, 2)
    assert found.state is KeyState.OPEN


def test_a_window_is_used_by_starts_and_by_what_will_start() -> None:
    key("api", rate=(2, 10))
    started("api")
    admitted("api")
    found = status(now=at(1))
    assert (found.starts, found.used) == (1, 2)
    assert list(found.stopped_by) == ["rate"]
    assert found.frees_at is not None
    assert at(10) <= found.frees_at <= at(10.1)


def test_what_the_report_calls_open_is_admitted() -> None:
    key("api", rate=(1, 10))
    started("api")
    call = waiting("api")
    for now in (at(5), at(9.9), at(10.2)):
        is_open = status(now=now).state is KeyState.OPEN
        assert bool(go(call, now=now)) == is_open


def test_calls_that_wait_are_counted_with_the_oldest() -> None:
    key("api", concurrency=0)
    first, *_ = [waiting("api") for _ in range(3)]
    found = status()
    assert found.waiting == 3
    assert found.waiting_since == first.created_at


def test_costs_name_the_queue_s_own_key_too() -> None:
    key("api", concurrency=5)
    key("queue:mail", concurrency=5)
    call = waiting(costs={"api": 3}, queue="mail")
    assert {cost.name: cost.cost for cost in reports.costs(call.id)} == {"api": 3, "queue:mail": 1}


def test_the_view_for_autoscalers_says_how_many_calls_could_start() -> None:
    Queue.objects.create(name="idle")
    key("api", concurrency=2)
    for _ in range(3):
        waiting("api", queue="mail")
    with connection.cursor() as cursor:
        cursor.execute("SELECT queue, runnable, oldest_seconds > 0, active FROM dispatcher_runnable ORDER BY queue")
        assert cursor.fetchall() == [("idle", 0, False, 0), ("mail", 2, True, 0)]
    assert [(each.name, each.calls) for each in reports.runnable_calls()] == [("idle", 0), ("mail", 2)]
