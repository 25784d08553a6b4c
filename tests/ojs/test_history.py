"""The history of keys that are changed over HTTP."""

from typing import Any

import pytest
from pytest_django import Settings

from dispatcher.models import KeyChange, RateLimitKey
from dispatcher.ojs.auth import make_token
from tests.ojs.http_client import Api

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def http(settings: Settings) -> Api:
    """Declare a key, and return a client of the HTTP API that may do everything; no event log is kept."""
    settings.DISPATCHER = {}
    RateLimitKey.objects.declare("api", concurrency=5)
    return Api(Authorization=f"Bearer {make_token('ops', ['admin'])}")


def written() -> list[tuple[Any, ...]]:
    """Return the changes, oldest first."""
    return [*KeyChange.objects.order_by("id").values_list("verb", "actor", "source", "before", "after")]


def test_what_is_changed_over_http_is_recorded_with_its_token(http: Api) -> None:
    http.ask("PUT", "/rate-limits/api", {"concurrency": 0})
    http.ask("DELETE", "/rate-limits/api")
    http.post("/queues/mail/pause", {"reason": "the provider moves"})
    http.post("/admin/queues/mail/resume")
    http.ask("PUT", "/admin/queues/mail/rate-limit", {"concurrency": 2})
    http.ask("PUT", "/admin/queues/mail/config", {"concurrency": 4})
    assert [each[:3] for each in written()] == [
        (verb, "token:ops", "http") for verb in ("override", "end_override", "pause", "resume", "limit", "limit")
    ]
    assert KeyChange.objects.get(verb="pause").reason == "the provider moves"


def test_a_key_that_a_worker_blocks_is_recorded_with_its_token_and_message(http: Api) -> None:
    http.push(options={"keys": ["api"], "queue": "mail"})
    worker = Api(Authorization=f"Bearer {make_token('mailer', ['fetch:mail'])}")
    (job,) = worker.fetch("mail")
    error = {"message": "429 from the provider", "rate_limit_until": "+PT60S"}
    worker.post("/workers/nack", {"job_id": job["id"], "error": error})
    change = KeyChange.objects.get()
    assert (change.verb, change.actor, change.source) == ("block", "token:mailer", "http")
    assert (change.key, change.reason) == ("api", "429 from the provider")


@pytest.mark.parametrize("body", [{"until": "2099-01-01T00:00:00Z"}, {"reson": "x"}])
@pytest.mark.parametrize("path", ["/queues/mail", "/admin/queues/mail"])
def test_a_pause_refuses_what_it_does_not_keep(http: Api, path: str, body: dict[str, str]) -> None:
    for verb in ("pause", "resume"):
        error = http.post(f"{path}/{verb}", body, status=400)["error"]
        assert error["details"]["field"] == next(iter(body))
        assert ("expires_at" in error["message"]) == ("until" in body)
    assert written() == []
    assert http.ask("POST", f"{path}/pause", b"")["paused"]
