"""Pages over HTTP: no page misses a row, and none reads a table to its end."""

import base64
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from dispatcher import sql
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.ojs import job_query, pagination
from dispatcher.ojs.models import PullWorker
from tests.ojs.http_client import Api, field_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("open_http"), pytest.mark.django]

PARTS = ("jobs", "items", "queues", "subscriptions")


def push(api: Api, count: int, **job: Any) -> list[str]:
    jobs = [{"type": "mail.send", "args": [], **job}] * count
    return [each["id"] for each in api.post("/jobs/batch", {"jobs": jobs}, status=201)["jobs"]]


def rows_of(page: dict[str, Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = next(page[name] for name in PARTS if name in page)
    return rows


def name_of(row: dict[str, Any]) -> object:
    return next(row[name] for name in ("id", "name", "key") if name in row)


def turned(api: Api, path: str) -> Iterator[list[dict[str, Any]]]:
    """Yield the pages of a list, each by the cursor of the one before."""
    cursor = ""
    while True:
        page = api.get(f"{path}{'&' if '?' in path else '?'}{cursor}")
        yield rows_of(page)
        assert page["pagination"]["has_more"] == ("next_cursor" in page["pagination"])
        if not page["pagination"]["has_more"]:
            return
        cursor = f"cursor={page['pagination']['next_cursor']}"


def test_no_job_is_missed_by_who_cancels_page_by_page(api: Api) -> None:
    pushed = push(api, 60)
    cancelled = []
    for page in turned(api, "/admin/jobs?state=available&limit=20"):
        for job in page:
            api.ask("DELETE", f"/jobs/{job['id']}")
            cancelled.append(job["id"])
    assert sorted(cancelled) == sorted(pushed)


def test_no_dead_letter_is_missed_by_who_retries_page_by_page(api: Api) -> None:
    pushed = push(api, 7, options={"retry": {"max_attempts": 1, "on_exhaustion": "dead_letter"}})
    for job in api.fetch(count=10):
        api.post("/workers/nack", {"job_id": job["id"], "error": {"message": "no"}})
    # At one instant: the place in the order is that of the id, too.
    CallQueue.objects.update(finished_at=datetime(2030, 1, 1, tzinfo=UTC))
    retried = []
    for page in turned(api, "/dead-letter?limit=2"):
        for letter in page:
            api.post(f"/dead-letter/{letter['id']}/retry")
            retried.append(letter["id"])
    assert sorted(retried) == sorted(pushed)


@pytest.mark.parametrize("path", ["/admin/jobs", "/queues", "/admin/queues", "/rate-limits", "/admin/workers"])
def test_pages_by_cursor_hold_what_pages_by_number_hold(api: Api, path: str) -> None:
    for number in range(5):
        push(api, 1, options={"queue": f"queue-{number}", "rate_limit": {"key": f"key-{number}", "concurrency": 1}})
        api.fetch(f"queue-{number}", worker_id=f"worker-{number}")
    whole = api.get(path)
    rows = [name_of(row) for row in rows_of(whole)]
    assert [name_of(row) for page in turned(api, f"{path}?limit=2") for row in page] == rows
    numbered = [api.get(f"{path}?per_page=2&page={number}") for number in range(1, len(rows) // 2 + 2)]
    assert [name_of(row) for page in numbered for row in rows_of(page)] == rows
    assert whole["pagination"]["total"] >= 5
    assert whole["pagination"]["total_is_exact"] is True


def test_a_rare_job_is_found_behind_pages_that_look_through_others(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pagination, "ROW_LIMIT", 5)
    (rare,) = push(api, 1, type="rare")
    push(api, 12)
    found = list(turned(api, "/admin/jobs?type=rare"))
    assert [len(page) for page in found] == [0, 0, 1]
    assert found[2][0]["id"] == rare
    reply = api.get("/admin/jobs?type=rare")["pagination"]
    assert (reply["total"], reply["total_is_exact"]) == (0, False)
    assert api.get("/admin/jobs")["pagination"]["total"] == 5


def test_jobs_that_ended_are_listed_by_their_end(api: Api) -> None:
    first, second = push(api, 2)
    for job in (second, first):
        api.ask("DELETE", f"/jobs/{job}")
    for path in ("/admin/jobs?state=cancelled", "/admin/jobs?state=cancelled&queue=default&type=mail.send"):
        assert [job["id"] for job in api.get(path)["items"]] == [first, second]
        assert [job["id"] for page in turned(api, f"{path}&limit=1") for job in page] == [first, second]


@pytest.mark.parametrize(
    ("state", "options"),
    [("scheduled", {"scheduled_at": "2099-01-01T00:00:00Z"}), ("pending", {"pending": True})],
)
def test_jobs_that_wait_for_their_time_or_a_word_are_listed_page_by_page(
    api: Api, state: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed = [job for queue in ("b", "a") for job in push(api, 3, options={**options, "queue": queue})]
    # What is found by the index of the state is not looked for among others.
    monkeypatch.setattr(pagination, "ROW_LIMIT", 5)
    push(api, 12)
    found = [[job["id"] for job in page] for page in turned(api, f"/admin/jobs?state={state}&limit=2")]
    assert found == [pushed[3:5], [pushed[5], pushed[0]], pushed[1:3]]
    listed = api.get(f"/admin/jobs?state={state}&queue=b&type=mail.*")["items"]
    assert [job["id"] for job in listed] == pushed[:3]


def cursor(*parts: object) -> str:
    return base64.urlsafe_b64encode(json.dumps([str(part) for part in parts]).encode()).decode().rstrip("=")


def test_a_cursor_may_have_any_zone(api: Api) -> None:
    far = cursor("-finished_at", "-id", "2030-01-01T00:00:00+23:00", UUID(int=0))
    assert api.get(f"/dead-letter?cursor={far}")["jobs"] == []


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/admin/jobs?cursor=x", "cursor"),
        ("/admin/jobs?cursor=bzUw", "cursor"),
        ("/admin/jobs?cursor=WyItaWQiLCAieCJd", "cursor"),
        ("/admin/jobs?cursor=WyJpZCJd", "cursor"),
        ("/queues?cursor=WyJuYW1lIiwgIlx1MDAwMCJd", "cursor"),
        ("/queues?cursor=WyJuYW1lIiwgIlx1ZDgwMCJd", "cursor"),
        ("/dead-letter?cursor=WyItZmluaXNoZWRfYXQiLCAiLWlkIiwgIjIwMzAtMDEtMDEiLCAieCJd", "cursor"),
        (f"/dead-letter?cursor={cursor('-finished_at', '-id', '9999-12-31T23:59:59-23:00', UUID(int=0))}", "cursor"),
        (f"/events?after=evt_{UUID(int=253402300799999 << 80 | 7 << 76)}", "after"),
        ("/admin/jobs?offset=10001", "offset"),
        ("/admin/jobs?page=10000", "page"),
        ("/admin/jobs?page=0", "page"),
    ],
)
def test_a_page_that_does_not_exist_is_refused_by_its_field(api: Api, path: str, field: str) -> None:
    assert field_of(api.ask("GET", path, status=400)) == field


def test_a_cursor_of_another_list_is_refused(api: Api) -> None:
    push(api, 3)
    cursor = api.get("/admin/jobs?limit=1")["pagination"]["next_cursor"]
    assert field_of(api.ask("GET", f"/dead-letter?cursor={cursor}", status=400)) == "cursor"


def asked(look: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[str]]:
    """Return how many statements a look asks, and the text of Django's own."""
    names: list[str] = []
    ask = sql.ask

    def note(name: str, row: type[Any], params: Any) -> Any:
        names.append(name)
        return ask(name, row, params)

    with monkeypatch.context() as patch, CaptureQueriesContext(connection) as queries:
        patch.setattr(sql, "ask", note)
        look()
    return len(names) + len(queries), [query["sql"] for query in queries]


LISTS = [
    "/queues",
    "/rate-limits",
    "/dead-letter",
    "/dead-letter/stats",
    "/admin/stats",
    "/admin/queues",
    "/admin/jobs",
    "/admin/jobs?queue=queue-1&state=available",
    "/admin/workers",
    "/admin/scheduling/stats",
]


@pytest.mark.parametrize("path", LISTS)
def test_a_list_takes_as_many_statements_for_many_rows_as_for_a_few(
    api: Api, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    for first, last in ((0, 2), (2, 8)):
        for number in range(first, last):
            push(api, 2, options={"queue": f"queue-{number}"})
            api.fetch(f"queue-{number}", worker_id=f"worker-{number}")
            RateLimitKey.objects.declare(f"key-{number}", concurrency=1)
        api.get(path)
        count, texts = asked(lambda: api.get(path), monkeypatch)
        counts.append(count)
        counted = [text for text in texts if "COUNT(*)" in text and "dispatcher_" in text]
        assert all("LIMIT" in text for text in counted), counted
    assert counts[0] == counts[1]


def test_the_workers_are_counted_in_the_database(api: Api) -> None:
    push(api, 3)
    api.fetch(worker_id="busy", count=2)
    api.fetch(worker_id="quiet")
    api.post("/admin/workers/quiet/quiet")
    PullWorker.objects.filter(name="busy").update(seen_at=datetime(2020, 1, 1, tzinfo=UTC))
    reply = api.get("/admin/workers")
    assert reply["summary"] == {"total": 2, "running": 0, "quiet": 1, "stale": 1}
    assert {each["id"]: each["active_jobs"] for each in reply["items"]} == {"busy": 2, "quiet": 1}


def test_a_bulk_request_that_finds_too_little_in_time_goes_on_by_its_cursor(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pagination, "ROW_LIMIT", 5)
    monkeypatch.setattr(job_query, "_LOOKS_S", 0.0)
    push(api, 12)
    (rare,) = push(api, 1, type="rare")
    wanted: dict[str, Any] = {"filter": {"type": "rare"}, "confirm": True}
    matched = []
    while True:
        reply = api.post("/admin/jobs/bulk/cancel", wanted)
        matched.append(reply["matched"])
        if not reply["has_more"]:
            break
        wanted["cursor"] = reply["next_cursor"]
    assert matched == [0, 0, 1]
    assert api.get(f"/jobs/{rare}")["job"]["state"] == "cancelled"
    assert CallQueue.objects.filter(state="available").count() == 12


def test_what_moves_many_jobs_stops_when_its_time_is_up_and_goes_on_in_the_next_request(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatcher.ojs.views.admin._BUDGET_S", 0.0)
    monkeypatch.setattr("dispatcher.ojs.views.admin._BATCH", 2)
    push(api, 5)
    wanted: dict[str, Any] = {"filter": {}, "confirm": True}
    cancelled = []
    while True:
        reply = api.post("/admin/jobs/bulk/cancel", wanted)
        cancelled.append((reply["matched"], reply["succeeded"]))
        if not reply["has_more"]:
            break
        wanted["cursor"] = reply["next_cursor"]
    assert cancelled == [(2, 2), (2, 2), (1, 1)]
    purge = {"states": ["cancelled"], "confirm": True}
    answers = [api.ask("DELETE", "/admin/queues/default/jobs", purge) for _ in range(3)]
    assert [(reply["purged_count"], reply["has_more"]) for reply in answers] == [(2, True), (2, True), (1, False)]


def test_a_purge_ends_what_waits_wherever_it_waits(api: Api) -> None:
    push(api, 2)
    push(api, 2, options={"scheduled_at": "2099-01-01T00:00:00Z"})
    push(api, 2, options={"pending": True})
    push(api, 2, options={"queue": "else"})
    (taken,) = api.fetch()
    wanted = {"states": ["available", "scheduled", "pending", "cancelled"], "confirm": True}
    reply = api.ask("DELETE", "/admin/queues/default/jobs", wanted)
    assert (reply["purged_count"], reply["has_more"]) == (5, False)
    reply = api.ask("DELETE", "/admin/queues/default/jobs", wanted)
    assert (reply["purged_count"], reply["has_more"]) == (5, False)
    assert {str(call.id) for call in CallQueue.objects.filter(queue="default")} == {taken["id"]}
    assert CallQueue.objects.filter(queue="else").count() == 2


def test_a_purge_says_that_there_is_more(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatcher.ojs.views.admin.MAX_MOVED", 3)
    monkeypatch.setattr(job_query, "MAX_MOVED", 3)
    push(api, 5)
    wanted = {"states": ["available", "cancelled"], "confirm": True}
    answers = [api.ask("DELETE", "/admin/queues/default/jobs", wanted) for _ in range(4)]
    assert [(reply["purged_count"], reply["has_more"]) for reply in answers] == [
        (3, True),
        (5, True),
        (2, False),
        (0, False),
    ]


def test_the_rates_of_a_queue_are_estimated_from_its_latest_jobs(api: Api) -> None:
    (job,) = push(api, 1)
    api.fetch()
    api.post("/workers/ack", {"job_id": job})
    reply = api.get("/queues/default/stats")["stats"]
    assert (reply["completed"], reply["completed_last_hour"], reply["completed_last_minute"]) == (1, 1, 1)
    assert api.get("/admin/stats")["throughput"] == {"processed_per_minute": 1, "failed_per_minute": 0}
