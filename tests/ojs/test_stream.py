"""The live stream of events over HTTP, and how much one read looks at."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Timer
from typing import Any

import pytest
from django.db import connection, connections
from django.db.models.functions import Now
from pytest_django import Settings

from dispatcher.models import CallQueue, Queue
from dispatcher.ojs.auth import Access
from dispatcher.ojs.events import live, query, source
from dispatcher.ojs.events.live import LiveEvents
from dispatcher.ojs.events.query import EventFilter, Page, after, now
from dispatcher.ojs.views import events
from dispatcher.request import Call
from tests.ojs.http_client import Api

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.django]


@pytest.fixture
def elsewhere(open_http: None, settings: Settings) -> Iterator[str]:
    """Keep the dispatcher's tables in a database that is not Django's default one."""
    del open_http
    connections["elsewhere"] = connection.copy("elsewhere")
    settings.DISPATCHER = {**settings.DISPATCHER, "database": "elsewhere"}
    yield "elsewhere"
    connections["elsewhere"].close()
    del connections["elsewhere"]


def test_a_stream_that_waits_holds_no_connection_to_the_dispatcher_s_database(
    api: Api, elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = api.push()
    held = []

    def rest(_: float) -> None:
        held.append(connections[elsewhere].connection is not None)
        api.fetch()

    monkeypatch.setattr(live, "_FRESH_S", 0)
    monkeypatch.setattr(events, "sleep", rest)
    monkeypatch.setattr(connections, "all", lambda **_: [connections[elsewhere]])
    answer = api.client.get(f"/ojs/v1/jobs/{job['id']}/events")
    stream = iter(answer.streaming_content)
    assert [next(stream).partition(b"\n")[0] for _ in range(3)][1:] == [b"event: job.enqueued", b"event: job.started"]
    assert held == [False]
    answer.close()


def test_streams_that_ask_for_the_same_share_what_one_has_read(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    monkeypatch.setattr(live, "after", lambda *asked: reads.append(asked) or after(*asked))
    monkeypatch.setattr(live, "_FRESH_S", 60)
    start = now()
    job = api.push()["id"]
    shared = LiveEvents()
    pages = [shared.after(EventFilter(queues=("default",)), start) for _ in range(3)]
    assert [[event["subject"] for event in page.events] for page in pages] == [[job]] * 3
    assert shared.after(EventFilter(queues=("default",)), pages[0].cursor).events == []
    assert len(reads) == 1
    assert shared.after(EventFilter(queues=("other",)), start).events == []
    assert len(reads) == 2


def test_a_read_keeps_no_other_stream_waiting(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, start, job = LiveEvents(), now(), api.push()["id"]
    begun, may_end = Event(), Event()

    def slow(asked: EventFilter, *more: Any) -> Page:
        if asked.types:
            begun.set()
            assert may_end.wait(20)
        return after(asked, *more)

    monkeypatch.setattr(live, "after", slow)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(shared.after, EventFilter(types=("job.*",)), start)
        assert begun.wait(20)
        # Were it to wait for the other, this would not come back before that may end.
        Timer(10, may_end.set).start()
        events = shared.after(EventFilter(), start).events
        assert shared.is_valid(Access())
        assert not may_end.is_set()
        may_end.set()
        assert [event["subject"] for event in events] == [job]
        assert [event["subject"] for event in first.result(20).events] == [job]


def test_a_stream_says_how_far_it_has_read_where_there_are_no_events(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    begin, reached = "evt_00000000-0000-7000-8000-000000000000", now()
    monkeypatch.setattr(live, "after", lambda *_: Page(events=[], cursor=reached, has_more=True))
    answer = api.client.get("/ojs/v1/events/stream", headers={"Last-Event-ID": begin})
    reply = iter(answer.streaming_content)
    assert [next(reply).partition(b"\n")[0].decode() for _ in range(2)] == [f"id: {begin}", f"id: {reached}"]
    answer.close()


def test_a_stream_without_a_place_ends_and_says_where_to_go_on(open_http: None, settings: Settings) -> None:
    settings.DISPATCHER = {**settings.DISPATCHER, "http_waiters": 0}
    api = Api()
    start = now()
    answer = api.client.get("/ojs/v1/events/stream")
    (only,) = answer.streaming_content
    assert only.decode().startswith(f"id: {start[:12]}")
    job = api.push()["id"]
    answer = api.client.get("/ojs/v1/events/stream", headers={"Last-Event-ID": start})
    _, reply = answer.streaming_content
    assert f'"subject": "{job}"' in reply.decode()


def test_one_read_builds_a_bounded_number_of_events_and_goes_on_behind_them(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    Queue.objects.create(name="many", delivery="http")
    for _ in range(40):
        CallQueue.objects.send_many([Call(task="a.task", queue="many")] * 10)
    first = CallQueue.objects.order_by("position").values("id")[:200]
    CallQueue.objects.filter(id__in=first).update(state="completed", finished_at=Now())
    reply, of_job = [], query.job_events
    monkeypatch.setattr(query, "job_events", lambda row: reply.append(row.id) or of_job(row))
    monkeypatch.setattr(query, "_BUDGET_S", 0)
    monkeypatch.setattr(source, "SPLIT_ROWS", 20)
    cursor, found, reads = "evt_00000000-0000-7000-8000-000000000000", [], []
    while True:
        page = api.get(f"/events?after={cursor}&types=job.completed&limit=1000")
        assert page["cursor"] > cursor
        cursor, found = page["cursor"], [*found, *page["events"]]
        reads.append(len(reply) - sum(reads))
        if not page["has_more"]:
            break
    assert len({event["subject"] for event in found}) == len(found) == 200
    # All 200 that ended at once come at once: a read does not divide a millisecond.
    assert sorted(reads)[-2] <= 60
