"""Limits per worker hold for workers that fetch."""

from uuid import UUID

import pytest

from dispatcher.models import Queue, RateLimitKey
from dispatcher.ojs import fetch as ojs_fetch
from dispatcher.ojs import worker_reports
from tests.builders import committed
from tests.steps.feeding import send

pytestmark = [committed, pytest.mark.usefixtures("direct")]


def test_a_fetching_worker_holds_its_part() -> None:
    Queue.objects.update(delivery="http")
    RateLimitKey.objects.declare("exports", per_worker=2)
    calls = send(5, keys=["exports"])
    free = send(1)

    def fetch(worker: str | None) -> list[UUID]:
        return [call.id for call in ojs_fetch.fetch(ojs_fetch.FetchRequest(queues=["mail"], worker=worker, count=9))]

    assert sorted(fetch("one")) == sorted([calls[0].id, calls[1].id, free[0].id])
    assert fetch("one") == []
    assert fetch(None) == [], "a worker without a name can't be counted"
    assert fetch("two") == [calls[2].id, calls[3].id]
    worker_reports.ack(calls[0].id, result=1)
    assert fetch("one") == [calls[4].id]
