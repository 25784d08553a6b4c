"""What is bounded of what a request carries, and what is the same."""

from typing import Any

import pytest
from pytest_django import Settings

from dispatcher.models import CallQueue
from tests.ojs.http_client import Api, field_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.django]

LARGE = "x" * 70_000


@pytest.mark.parametrize(
    "job",
    [{"unknown": LARGE}, {"options": {"tags": ["x" * 4_000] * 20}}, {"args": [LARGE]}, {"options": {"more": LARGE}}],
)
def test_a_job_is_bounded_with_all_that_is_kept_of_it(api: Api, settings: Settings, job: dict[str, Any]) -> None:
    settings.DISPATCHER = {**settings.DISPATCHER, "max_payload_bytes": 65_536}
    api.post("/jobs", {"type": "a", "args": [], **job}, status=413)
    assert not CallQueue.objects.exists()


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
