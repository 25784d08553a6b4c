"""What is bounded of what a request carries, and what is the same."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.db.models import JSONField, Value
from pytest_django import Settings

from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.ojs.models import Part
from dispatcher.reports import rate_limit_status
from tests.ojs.http_client import Api, field_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.django]

LARGE = "x" * 70_000


@pytest.mark.parametrize(
    "job",
    [
        *(
            {"unknown": LARGE},
            {"options": {"tags": ["x" * 4_000] * 20}},
            {"args": [LARGE]},
            {"options": {"more": LARGE}},
        ),
        {"options": {"retry": {"non_retryable_errors": ["x" * 250] * 300}}},
    ],
)
def test_a_job_is_bounded_with_all_that_is_kept_of_it(api: Api, settings: Settings, job: dict[str, Any]) -> None:
    settings.DISPATCHER = {**settings.DISPATCHER, "max_payload_bytes": 65_536}
    api.post("/jobs", {"type": "a", "args": [], **job}, status=413)
    assert not CallQueue.objects.exists()


@pytest.mark.parametrize(
    "job", [{"args": [LARGE]}, {"meta": {"a": "x" * 60_000, "b": "y" * 5_000}}, {"options": {"more": LARGE}}]
)
def test_the_job_of_a_cron_is_bounded_too(api: Api, settings: Settings, job: dict[str, Any]) -> None:
    settings.DISPATCHER = {**settings.DISPATCHER, "max_payload_bytes": 65_000}
    for cron in ({"type": "a", **job}, {"job_template": {"type": "a", **job}}):
        api.post("/cron", {"name": "nightly", "cron": "@daily", **cron}, status=413)
    assert api.get("/cron")["count"] == 0


def test_a_result_that_is_too_large_is_refused_and_the_job_goes_on(api: Api, settings: Settings) -> None:
    settings.DISPATCHER = {**settings.DISPATCHER, "max_payload_bytes": 65_000}
    job = api.taken()
    answer = api.ack(job, result=LARGE, status=413)
    assert (field_of(answer), "store it elsewhere" in answer["error"]["message"]) == ("result", True)
    assert api.get(f"/jobs/{job['id']}")["job"]["state"] == "active"
    # In bytes of UTF-8, as it is stored.
    api.ack(job, result="ä" * 32_000)
    assert api.get(f"/jobs/{job['id']}")["job"]["result"] == "ä" * 32_000


@pytest.mark.parametrize("more", [{"details": {"a": LARGE}}, {"backtrace": [LARGE]}, {"unknown": LARGE}])
def test_of_a_large_error_its_kind_and_message_are_kept(api: Api, more: dict[str, Any]) -> None:
    job = api.taken()
    error = {"type": "smtp", "code": "E1", "message": "no", **more}
    assert api.nack(job, **error)["state"] == "retryable"
    kept = api.get(f"/jobs/{job['id']}")["job"]["error"]
    assert (kept["type"], kept["code"], kept["message"]) == ("smtp", "E1", "no")
    assert kept["details"].endswith("bytes, not kept")
    assert len(str(kept)) < 1_000


def test_the_content_of_a_progress_is_bounded(api: Api) -> None:
    job = api.taken()
    api.ask("PUT", f"/jobs/{job['id']}/progress", {"progress": 0.5, "data": {"a": LARGE}}, status=413)


@pytest.mark.parametrize("path", ["/workers/fetch", "/workers/heartbeat", "/jobs"])
def test_no_lease_without_a_heartbeat_is_longer_than_half_a_day(api: Api, path: str) -> None:
    body = {"queues": ["default"], "worker_id": "me", "type": "a", "args": [], "visibility_timeout_ms": 43_200_001}
    assert field_of(api.post(path, body, status=400)) == "visibility_timeout_ms"


@pytest.mark.parametrize(("first", "second"), [(1, 1.0), (0, -0.0), ({"a": [1e3]}, {"a": [1000]})])
def test_a_number_has_one_form_where_jobs_are_compared(api: Api, first: object, second: object) -> None:
    unique = {"unique": {"keys": ["type", "args"]}}
    api.push(args=[first], options=unique)
    api.post("/jobs", {"type": "mail.send", "args": [second], "options": unique}, status=409)
    api.push(args=[1.5], options=unique)
    api.push(args=[True], options=unique)


# What an answer holds


MOST = 4 * 1_048_576
ONCE = {"retry": {"max_attempts": 1, "on_exhaustion": "dead_letter"}}


def grow(**texts: str) -> None:
    """Give all calls these large texts, by column."""
    CallQueue.objects.update(**{name: Value([{"text": text}], JSONField()) for name, text in texts.items()})


@contextmanager
def little_memory() -> Iterator[None]:
    """Check that the process takes less than 100 MB more meanwhile."""
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_kb()
    yield
    assert peak_kb() - before < 100_000


def peak_kb() -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1])


def test_a_fetch_answers_with_what_four_megabytes_have_room_for(api: Api) -> None:
    RateLimitKey.objects.declare("api", rate=(500, 3_600))
    api.post("/jobs/batch", {"jobs": [{"type": "a", "args": [], "keys": ["api"]}] * 500}, status=201)
    grow(args="x" * 1_000_000)
    with little_memory():
        fetched = api.fetch(count=500)
    assert (len(fetched), len(api.last.content) < MOST) == (4, True)
    # What had no room was not started, so that it is not counted either.
    assert CallQueue.objects.filter(state="available", attempt=0).count() == 496
    assert rate_limit_status(["api"])[0].starts == 4
    assert [len(api.fetch(count=500)), len(api.fetch())] == [4, 1]


def test_a_fetch_answers_with_one_job_however_large(api: Api) -> None:
    api.post("/jobs/batch", {"jobs": [{"type": "a", "args": []}] * 3}, status=201)
    grow(args="x" * 5_000_000)
    assert [len(api.fetch(count=3)) for _ in range(3)] == [1, 1, 1]


def test_a_fetch_that_may_wait_answers_with_no_more(api: Api) -> None:
    api.post("/jobs/batch", {"jobs": [{"type": "a", "args": []}] * 6}, status=201)
    grow(args="x" * 1_000_000)
    assert [len(api.fetch(count=6, wait_ms=1_000)) for _ in range(2)] == [4, 2]


@pytest.mark.parametrize("path", ["/admin/jobs?state=discarded", "/admin/jobs", "/dead-letter", "/admin/dead-letter"])
def test_a_list_of_jobs_has_shorter_pages_where_they_are_large(api: Api, path: str) -> None:
    api.post("/jobs/batch", {"jobs": [{"type": "a", "args": [], "options": ONCE}] * 10}, status=201)
    for job in api.fetch(count=10):
        api.nack(job)
    grow(args="x" * 1_000_000)
    seen: list[str] = []
    more = ""
    for count in (4, 4, 2):
        page = api.get(f"{path}{'&' if '?' in path else '?'}limit=10{more}")
        found = page.get("items", page.get("jobs"))
        assert (len(found), len(api.last.content) < MOST) == (count, True)
        assert page["pagination"]["has_more"] == (count == 4)
        seen += [job["id"] for job in found]
        more = f"&cursor={page['pagination'].get('next_cursor')}"
    assert len({*seen}) == 10


def test_events_come_in_shorter_pages_where_they_are_large(api: Api) -> None:
    api.post("/jobs/batch", {"jobs": [{"type": "a", "args": [], "options": ONCE}] * 8}, status=201)
    for job in api.fetch(count=8):
        api.nack(job)
    CallQueue.objects.update(error={"type": "a", "message": "x" * 1_000_000})
    latest = api.get("/events?types=job.discarded")
    assert (len(latest["events"]), len(api.last.content) < MOST) == (4, True)
    cursor, seen = "evt_00000000-0000-7000-8000-000000000000", []
    for count, has_more in ((4, True), (4, False)):
        page = api.get(f"/events?types=job.discarded&after={cursor}")
        assert (len(page["events"]), page["has_more"], len(api.last.content) < MOST) == (count, has_more, True)
        seen += page["events"]
        cursor = page["cursor"]
    assert len({event["id"] for event in seen}) == 8
    assert latest["events"] == seen[4:]


def test_a_list_of_crons_has_shorter_pages_where_they_are_large(api: Api) -> None:
    for name in "abc":
        api.post("/cron", {"name": name, "cron": "@daily", "type": "a", "args": ["x" * 500_000]}, status=201)
    page = api.get("/cron")
    assert (page["count"], page["pagination"]["total"], len(api.last.content) < MOST) == (2, 3, True)
    assert [cron["name"] for cron in api.get(f"/cron?cursor={page['pagination']['next_cursor']}")["crons"]] == ["c"]


def test_a_workflow_shows_the_results_and_errors_that_have_room(api: Api) -> None:
    jobs = [{"type": "a", "args": [], "options": ONCE}] * 20
    made = api.post("/workflows", {"type": "group", "jobs": jobs}, status=201)["workflow"]
    for number, job in enumerate(api.fetch(count=20)):
        if number % 2:
            api.nack(job)
        else:
            api.ack(job, result=1)
    Part.objects.filter(outcome="completed").update(result="x" * 1_000_000)
    grow(args="x" * 1_000_000)
    CallQueue.objects.filter(state="discarded").update(error={"type": "a", "message": "x" * 500_000})
    with little_memory():
        shown = api.get(f"/workflows/{made['id']}")["workflow"]
    assert len(api.last.content) < MOST
    assert (len([each for each in shown["jobs"] if each.get("result")]), len(shown["errors"])) == (2, 2)
    assert [each["state"] for each in shown["jobs"]] == ["completed", "failed"] * 10
