"""Events over HTTP."""

import re
from datetime import timedelta
from typing import Any
from unittest import mock
from uuid import UUID, uuid4

import pytest
from django.db import connection, transaction
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django import Settings

import dispatcher.api
from dispatcher import engine, sql
from dispatcher.api import any_of
from dispatcher.ending import completed
from dispatcher.engine import ends
from dispatcher.lifecycle.finish import Ended
from dispatcher.models import CallQueue, Lane, Note, Worker
from dispatcher.ojs import enqueue
from dispatcher.ojs.events import query, source
from dispatcher.ojs.events.source import CallFilter, Span
from dispatcher.ojs.models import EventLogEntry
from dispatcher.ojs.workflow import advance
from dispatcher.request import Call
from tests.ojs.http_client import MOMENT, Api, another_transaction

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.django]


COUNTED = """
CREATE FUNCTION written() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE 'written'; RETURN NULL; END $$;
CREATE TRIGGER written AFTER INSERT ON dispatcher_eventlogentry FOR EACH STATEMENT EXECUTE FUNCTION written()
"""
"""Gives notice of each statement that writes into the event log."""


def events_of(api: Api, types: str, **more: str) -> list[dict[str, Any]]:
    """Return the events of these types, oldest first."""
    query = "&".join(f"{name}={value}" for name, value in more.items())
    events = api.get(f"/events?types={types}&{query}")["events"]
    assert isinstance(events, list)
    return events


def test_the_ends_of_jobs_are_read_from_no_more_rows_than_are_shown(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        job = api.taken()
        api.ack(job)
    last = job["id"]
    api.push()
    built = mock.Mock(wraps=query.job_events)
    monkeypatch.setattr(query, "job_events", built)
    events = events_of(api, "job.completed", limit="2")
    assert [event["data"]["job_id"] for event in events][-1] == last
    assert len(events) == built.call_count == 2


def data(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event["data"] for event in events]


# What limits do


def test_a_job_that_a_limit_stops_has_one_event_and_another_when_it_goes(api: Api) -> None:
    first, second, third = (api.push(rate_limit={"key": "one", "concurrency": 1}) for _ in range(3))
    assert len(api.fetch(count=3)) == 1
    api.fetch(count=3)
    exceeded = {"queue": "default", "key": "one", "strategy": "concurrency", "limit": 1, "current": 1}
    assert data(events_of(api, "rate_limit.*")) == [{**exceeded, "job_id": second["id"]}]
    api.ack(first)
    assert [job["id"] for job in api.fetch(count=3)] == [second["id"]]
    released = {"queue": "default", "key": "one", "strategy": "concurrency", "job_id": second["id"]}
    events = events_of(api, "rate_limit.*")
    assert [event["type"].partition(".")[2] for event in events] == ["exceeded", "released", "exceeded"]
    assert data(events)[1:] == [released, {**exceeded, "job_id": third["id"]}]
    assert len({event["id"] for event in events}) == 3


def test_a_trip_that_fills_a_key_has_the_event_of_the_job_behind_it(api: Api) -> None:
    _, second = (api.push(rate_limit={"key": "one", "concurrency": 1}) for _ in range(2))
    api.fetch()
    assert [each["job_id"] for each in data(events_of(api, "rate_limit.exceeded"))] == [second["id"]]


def test_the_strategy_that_an_event_names_is_the_one_that_is_spent(api: Api) -> None:
    limits = {"key": "paced", "concurrency": 9, "rate": {"limit": 2, "period": "PT1H"}}
    for _ in range(3):
        api.push(rate_limit=limits)
    api.fetch(count=3)
    api.fetch()
    (exceeded,) = data(events_of(api, "rate_limit.exceeded"))
    assert (exceeded["strategy"], exceeded["limit"], exceeded["current"]) == ("rate", 2, 2)


def test_what_a_trip_releases_and_stops_is_written_by_one_statement(api: Api) -> None:
    first, *_ = (api.push(rate_limit={"key": "one", "concurrency": 1}) for _ in range(3))
    api.fetch()
    api.fetch()
    api.ack(first)
    with connection.cursor() as cursor, sql.notices() as noticed:
        cursor.execute(COUNTED)
        api.fetch(count=3)
        cursor.execute("DROP FUNCTION written CASCADE")
    assert len(events_of(api, "rate_limit.*")) == 3
    assert [notice for notice, _ in noticed if notice == "written"] == ["written"]


def test_a_wait_is_one_event_however_often_a_limit_stops_it(api: Api) -> None:
    jobs = [api.push(rate_limit={"key": "one", "concurrency": 1}) for _ in range(2)]
    api.fetch()
    api.fetch()
    for _ in range(2):
        with sql.atomic():
            Note.objects.create(at=timezone.now(), lane_id=Lane.objects.get().id, is_forced=True)
        assert api.fetch() == []
    assert [event["job_id"] for event in data(events_of(api, "rate_limit.*"))] == [jobs[1]["id"]]


@pytest.mark.parametrize(
    ("limits", "strategy", "current"),
    [
        ({"throttle": {"limit": 1, "period": "PT1M"}}, "throttle", 0),
        ({"rate": {"limit": 1, "period": "PT1M"}, "on_limit": "reschedule"}, "rate", 1),
    ],
    ids=["a throttle", "rescheduled"],
)
def test_the_event_of_a_limit_of_time_names_what_is_spent(
    api: Api, limits: dict[str, Any], strategy: str, current: int
) -> None:
    for _ in range(2):
        api.push(rate_limit={"key": "timed", **limits})
    api.fetch(count=2)
    api.fetch()
    (exceeded,) = data(events_of(api, "rate_limit.*"))
    assert (exceeded["strategy"], exceeded["limit"], exceeded["current"]) == (strategy, 1, current)


def test_who_waits_for_a_person_or_the_end_of_a_block_is_at_no_limit(api: Api) -> None:
    api.push(rate_limit={"key": "one", "concurrency": 1})
    dispatcher.api.pause("one")
    assert api.fetch() == []
    dispatcher.api.resume("one")
    dispatcher.api.block("one", timedelta(hours=1))
    assert api.fetch() == []
    assert events_of(api, "rate_limit.exceeded") == []


def test_a_limit_that_a_worker_reports_has_an_event_with_its_end(api: Api) -> None:
    job = api.taken(rate_limit={"key": "one", "concurrency": 1})
    until = (timezone.now() + timedelta(minutes=5)).isoformat()
    api.nack(job, code="rate_limited", message="429", rate_limit_until=until)
    (adjusted,) = data(events_of(api, "rate_limit.dynamic_adjusted"))
    assert (adjusted["key"], adjusted["reason"]) == ("one", "blocked")
    assert adjusted["until"][:16] == until[:16]
    assert re.fullmatch(MOMENT, adjusted["until"]), "as all times: UTC, with Z"


def test_what_a_limit_drops_has_an_event_with_its_key(api: Api) -> None:
    jobs = [api.push(rate_limit={"key": "one", "concurrency": 1, "on_limit": "drop"}) for _ in range(2)]
    api.fetch(count=2)
    (dropped,) = data(events_of(api, "rate_limit.dropped"))
    assert dropped == {"key": "one", "job_id": jobs[1]["id"], "job_type": "mail.send", "queue": "default"}


@pytest.mark.parametrize("key", ["narrow", any_of("narr*")], ids=["a key", "a group"])
def test_a_celery_queue_has_events_of_its_limits_too(api: Api, key: str) -> None:
    dispatcher.api.declare("narrow", {"concurrency": 1})
    for _ in range(2):
        CallQueue.objects.send("a.task", keys=[key], queue="celery")
    (exceeded,) = data(events_of(api, "rate_limit.exceeded", queues="celery"))
    assert exceeded["key"] == ("narrow" if key == "narrow" else "narr*")
    assert (exceeded["strategy"], exceeded["current"]) == ("concurrency", 1)


# What queues do


def test_a_full_queue_has_events_when_it_warns_refuses_and_is_at_ease_again(api: Api) -> None:
    bound = {"backpressure": {"max_depth": 4, "warning_threshold": 0.5}}
    api.ask("PUT", "/admin/queues/small/config", bound)
    for _ in range(4):
        api.push(queue="small")
    api.post("/jobs", {"type": "mail.send", "args": [], "queue": "small"}, status=429)
    assert enqueue.clear_backpressure() == 0
    api.fetch("small", count=3)
    assert (enqueue.clear_backpressure(), enqueue.clear_backpressure()) == (1, 0)
    events = events_of(api, "backpressure.*", queues="small")
    assert [(event["type"].partition(".")[2], event["data"]["depth"]) for event in events] == [
        ("warning", 2),
        ("rejected", 4),
        ("cleared", 1),
    ]
    assert events[1]["data"] == {"queue": "small", "depth": 4, "bound": 4, "job_type": "mail.send"}


def test_what_makes_room_in_a_full_queue_has_an_event(api: Api) -> None:
    api.ask("PUT", "/admin/queues/fresh/config", {"backpressure": {"max_depth": 1, "strategy": "drop_oldest"}})
    oldest = api.push(queue="fresh")
    api.push(queue="fresh")
    (dropped,) = data(events_of(api, "backpressure.dropped"))
    assert dropped == {"queue": "fresh", "job_id": oldest["id"], "job_type": "mail.send"}


def test_the_event_of_a_pause_names_its_actor(api: Api) -> None:
    api.push(queue="mail")
    api.post("/queues/mail/pause")
    dispatcher.api.resume("queue:mail", by="ada")
    dispatcher.api.declare("api", {})
    dispatcher.api.pause("api", by="ada")
    events = events_of(api, "queue.*")
    assert [event["type"] for event in events] == ["queue.paused", "queue.resumed"]
    assert data(events) == [{"queue": "mail", "paused_by": ""}, {"queue": "mail", "resumed_by": "ada"}]


def test_a_heartbeat_has_an_event_for_each_job_that_it_keeps(api: Api) -> None:
    job = api.push()
    api.fetch(worker_id="w1")
    api.post("/workers/heartbeat", {"worker_id": "w1", "active_jobs": [job["id"]]})
    (beaten,) = data(events_of(api, "job.heartbeat"))
    assert (beaten["job_id"], beaten["worker_id"], beaten["attempt"]) == (job["id"], "w1", 1)
    assert beaten["visible_until"] > timezone.now().isoformat()
    assert re.fullmatch(MOMENT, beaten["visible_until"])


def test_a_job_has_its_own_part_of_the_event_log(api: Api) -> None:
    jobs = [api.push(rate_limit={"key": "one", "concurrency": 1}) for _ in range(2)]
    api.fetch()
    api.fetch()
    answer = api.client.get(f"/ojs/v1/jobs/{jobs[1]['id']}/events")
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    stream = iter(answer.streaming_content)
    assert next(stream) == b"retry: 3000\n\n"
    assert next(stream).startswith(b"event: job.enqueued\nid: evt_")
    assert next(stream).startswith(b"event: rate_limit.exceeded")
    answer.close()


def test_the_event_log_is_off_by_default(api: Api, settings: Settings) -> None:
    dispatcher.api.declare("queue:mail", {})
    assert "rate-limiting" in api.client.get("/ojs/manifest").json()["extensions"]
    settings.DISPATCHER = {"http_anonymous": ["admin"]}
    dispatcher.api.resume("queue:mail")
    assert not EventLogEntry.objects.exists()
    assert not {"rate-limiting", "backpressure"}.intersection(api.client.get("/ojs/manifest").json()["extensions"])


# What workflows and workers do


def test_a_workflow_has_events_of_its_steps_and_its_end(api: Api) -> None:
    steps = [{"type": "a", "args": []}, {"type": "b", "args": []}]
    made = api.post("/workflows", {"type": "chain", "name": "two", "steps": steps}, status=201)["workflow"]
    for _ in steps:
        (job,) = api.fetch()
        api.ack(job)
        advance.advance_all()
    events = events_of(api, "workflow.*")
    assert [event["type"].partition(".")[2] for event in events] == [
        "started",
        "step_completed",
        "step_completed",
        "completed",
    ]
    assert {event["subject"] for event in events} == {made["id"]}
    assert [event["data"]["steps_remaining"] for event in events[1:3]] == [1, 0]
    assert (events[1]["data"]["step_type"], events[3]["data"]["total_steps"]) == ("a", 2)


def test_a_failed_workflow_has_an_event_with_the_step_and_its_error(api: Api) -> None:
    step = {"type": "a", "args": [], "options": {"retry": {"max_attempts": 1}}}
    api.post("/workflows", {"type": "chain", "name": "one", "steps": [step]}, status=201)
    (job,) = api.fetch()
    api.post("/workers/nack", {"job_id": job["id"], "error": {"code": "handler_error", "message": "no"}})
    advance.advance_all()
    (failed,) = data(events_of(api, "workflow.failed"))
    assert (failed["failed_step_id"], failed["failed_step_type"], failed["error"]["message"]) == ("0", "a", "no")


# What jobs do


def test_events_come_in_order_and_once(api: Api) -> None:
    job = api.taken()
    api.ack(job)
    reply = api.get("/events?queues=default")
    kinds = [event["type"] for event in reply["events"]]
    assert kinds == ["job.enqueued", "job.started", "job.completed"]
    assert reply["events"][2]["data"]["duration_ms"] >= 0
    assert api.get(f"/events?after={reply['cursor']}")["events"] == []
    assert [event["type"] for event in api.get("/events?types=job.comp*")["events"]] == ["job.completed"]
    first = api.get(f"/events?after={reply['events'][0]['id']}&limit=1")
    assert ([event["type"] for event in first["events"]], first["has_more"]) == (["job.started"], True)


def test_what_a_transaction_holds_back_comes_after_what_was_returned_meanwhile(api: Api) -> None:
    api.push()
    cursor = api.get("/events")["cursor"]
    with another_transaction(lambda: CallQueue.objects.send("a.task", queue="late")):
        api.push()
        meanwhile = api.get(f"/events?after={cursor}")
        assert meanwhile["events"] == []
    events = api.get(f"/events?after={meanwhile['cursor']}")["events"]
    assert [event["data"]["queue"] for event in events] == ["late", "default"]


def test_however_many_events_there_are_each_is_on_one_page(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "_BUDGET_S", 600)
    sent = CallQueue.objects.send_many([Call(task="a.task", queue="many")] * 2_100)
    cursor, pages = "evt_00000000-0000-7000-8000-000000000000", []
    while True:
        page = api.get(f"/events?after={cursor}&limit=1000")
        pages.append([event["data"]["job_id"] for event in page["events"]])
        cursor = page["cursor"]
        if not page["has_more"]:
            break
    assert [len(page) for page in pages] == [1_000, 1_000, 100]
    assert {number for page in pages for number in page} == {str(call.id) for call in sent}


@pytest.mark.parametrize("query", ["", "&after=evt_00000000-0000-7000-8000-000000000000"])
def test_what_jobs_carry_and_return_is_not_read_for_their_events(api: Api, query: str) -> None:
    api.push(args=["x" * 1_000])
    with CaptureQueriesContext(connection) as asked:
        assert len(api.get(f"/events?limit=9{query}")["events"]) == 1
    reads = [read["sql"] for read in asked.captured_queries if '"dispatcher_callqueue"."task"' in read["sql"]]
    assert reads
    assert not [read for read in reads if re.search(r'"(args|kwargs|call_data|result|envelope)"', read)]


def test_the_event_log_of_a_job_is_found_by_an_index(api: Api) -> None:
    job = api.push()
    with CaptureQueriesContext(connection) as asked, transaction.atomic(), connection.cursor() as cursor:
        # Even of an event log that is empty: then its plan shows that the index can serve it.
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute("SET LOCAL enable_bitmapscan = off")
        span = Span(since=timezone.now(), until=timezone.now())
        list(source.entries(CallFilter(call=UUID(job["id"]))).filter(span.within("at")))
        read = asked.captured_queries[-1]["sql"]
        cursor.execute(f"EXPLAIN {read[read.index('SELECT') :]}")
        assert "entry_call" in str(cursor.fetchall())


def test_the_event_of_a_step_of_a_workflow_comes_before_later_ones(api: Api) -> None:
    steps = [{"type": "a", "args": []}, {"type": "b", "args": []}]
    api.post("/workflows", {"type": "chain", "steps": steps}, status=201)
    (job,) = api.fetch()
    cursor = api.get("/events")["cursor"]
    # As Celery ends it: what follows is done at the next look.
    done = Ended(call_id=UUID(job["id"]), ticket=UUID(job["ticket"]), claim_id=None, ending=completed(None))
    assert ends.record_one(done)
    page = api.get(f"/events?after={cursor}&types=workflow.*")
    assert [event["type"] for event in page["events"]] == ["workflow.step_completed"]
    advance.advance_all()
    assert api.get(f"/events?after={page['cursor']}&types=workflow.*")["events"] == []


@pytest.mark.parametrize("after", ["x", "evt_1", "evt_ffffffff-ffff-7000-8000-000000000000"])
def test_a_cursor_that_is_no_event_is_refused_with_its_name(api: Api, after: str) -> None:
    problem = api.get(f"/events?after={after}", status=400)["error"]
    assert (problem["code"], problem["details"]) == ("invalid_request", {"field": "after"})
    answer = api.client.get("/ojs/v1/events/stream", headers={"Last-Event-ID": after})
    assert (answer.status_code, answer.json()["error"]["details"]) == (400, {"field": "Last-Event-ID"})


def test_events_of_a_job_have_its_scheduled_time_and_that_of_its_expiry(api: Api) -> None:
    later = (timezone.now() + timedelta(hours=1)).isoformat()
    api.push(type="later", options={"scheduled_at": later})
    (scheduled,) = data(events_of(api, "job.scheduled"))
    assert (scheduled["job_type"], scheduled["scheduled_at"][:16]) == ("later", later[:16])
    job = api.push(type="soon", options={"expires_at": later})
    engine.tick(now=timezone.now() + timedelta(hours=2))
    assert events_of(api, "job.expired") == [], "a later event is returned when it comes"
    CallQueue.objects.filter(id=job["id"]).update(finished_at=Now())
    (expired,) = (each for each in data(events_of(api, "job.expired")) if each["job_id"] == job["id"])
    assert 3_590_000 < expired["ttl_ms"] <= 3_600_000
    assert expired["created_at"] < expired["expired_at"]


def test_celery_s_workers_have_events_of_their_start_and_stop(api: Api) -> None:
    now, queues = timezone.now() - timedelta(minutes=1), ["celery"]
    common = {"name": "celery@host", "host": "host", "pid": 1, "pool": "prefork", "processes": 4, "queues": queues}
    times = {"started_at": now, "seen_at": now, "serves_until": now}
    gone = Worker.objects.create(id=uuid4(), **common, **times, stopped_at=now + timedelta(seconds=1))
    lost = Worker.objects.create(id=uuid4(), **common, **times, lost_at=now + timedelta(seconds=1))
    started = data(events_of(api, "worker.started"))
    assert {each["worker_id"] for each in started} == {str(gone.id), str(lost.id)}
    assert [(each["queues"], each["concurrency"]) for each in started] == [(queues, 4)] * 2
    stopped = {each["worker_id"]: each["reason"] for each in data(events_of(api, "worker.stopped"))}
    assert stopped == {str(gone.id): "shutdown", str(lost.id): "error"}
