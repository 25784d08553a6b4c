"""Keys over HTTP: groups of them, limits per worker, and the record of who changed them."""

from typing import Any

import pytest

from dispatcher.api import any_of
from dispatcher.models import CallQueue, KeyChange, Queue, RateLimitKey
from tests.ojs.http_client import Api, Holder, error_of

pytestmark = pytest.mark.django_db(transaction=True)

PATTERN = "egress:*"
REMEDY = "deliver the queue directly or over HTTP, or limit the key by concurrency"


@pytest.fixture(autouse=True)
def _keys() -> None:
    RateLimitKey.objects.all().delete()
    for name in ("egress:1", "egress:2"):
        RateLimitKey.objects.declare(name, concurrency=1)


def job(**options: Any) -> dict[str, Any]:
    return {"type": "a", "args": [], "options": options}


# Groups


@pytest.mark.parametrize("keys", [[PATTERN], {PATTERN: 1}], ids=["names", "costs"])
def test_a_fetched_job_says_which_key_was_chosen(api: Api, keys: object) -> None:
    for _ in range(3):
        api.push(options={"keys": keys})
    assert api.get(f"/rate-limits/{PATTERN}")["members"] == {"total": 2, "open": 2}
    jobs = api.fetch(count=9)
    assert [job["chosen_keys"] for job in jobs] == [{PATTERN: "egress:1"}, {PATTERN: "egress:2"}]
    assert api.get(f"/jobs/{jobs[0]['id']}")["job"]["chosen_keys"] == {PATTERN: "egress:1"}
    api.post("/workers/ack", {"job_id": jobs[1]["id"], "result": None})
    assert [job["chosen_keys"] for job in api.fetch()] == [{PATTERN: "egress:2"}]


@pytest.mark.parametrize("pattern", ["nothing:*", "queue:*", "eg*ress"])
def test_a_pattern_that_can_t_be_used_is_refused(api: Api, pattern: str) -> None:
    refused = api.post("/jobs", job(keys=[pattern]), status=400)
    assert pattern in error_of(refused)[1] or "keys" in str(refused)
    assert not CallQueue.objects.exists()


@pytest.mark.parametrize("pattern", ["token:*", "tok*", "cron:a*"])
def test_a_pattern_that_matches_keys_of_the_dispatcher_needs_the_scope_admin(holder: Holder, pattern: str) -> None:
    assert error_of(holder("send").post("/jobs", job(keys=[pattern]), status=403))[0] == "permission_denied"


# Keys that are observed


def test_an_observed_key_says_what_its_limits_would_have_delayed(api: Api) -> None:
    RateLimitKey.objects.declare("smtp", concurrency=1, observe=True)
    for _ in range(3):
        api.push(options={"keys": ["smtp"]})
    assert len(api.fetch(count=9)) == 3
    shown = api.get("/rate-limits/smtp")
    assert (shown["state"], shown["observed"]["delayed"]) == ("observed", 2)
    assert "observed" not in api.get("/rate-limits/egress:1")


# Limits per worker


def test_a_queue_is_limited_per_worker_and_cleared_again_over_http(api: Api) -> None:
    path = "/admin/queues/mail/rate-limit"
    assert api.ask("PUT", path, {"concurrency": 5, "per_worker": 2})["per_worker"] == {"limit": 2, "active": 0}
    jobs = [api.push(options={"queue": "mail"}) for _ in range(3)]
    assert len(api.fetch("mail", worker_id="one", count=3)) == 2
    assert api.get("/rate-limits/queue:mail")["per_worker"] == {"limit": 2, "active": 2}
    assert "per_worker" not in api.ask("PUT", path, {"per_worker": None})
    assert [job["id"] for job in api.fetch("mail", worker_id="one", count=3)] == [jobs[2]["id"]]
    assert RateLimitKey.objects.get(name="queue:mail").per_worker is None


def test_a_job_makes_a_key_with_a_limit_per_worker(api: Api) -> None:
    api.push(options={"rate_limit": {"key": "exports", "per_worker": 1}})
    assert api.get("/rate-limits/exports")["per_worker"] == {"limit": 1, "active": 0}
    refused = api.post("/jobs", job(rate_limit={"key": "other", "per_worker": 0}), status=400)
    assert "per_worker" in str(refused["error"])


def test_requests_are_refused_that_limit_per_worker_what_the_broker_delivers(api: Api) -> None:
    RateLimitKey.objects.declare("exports", concurrency=5)
    Queue.objects.create(name="posted", delivery="broker")
    CallQueue.objects.send("t", queue="posted", keys=["exports", any_of("egress:*")])
    for method, path, body, word in (
        ("PUT", "/rate-limits/exports", {"per_worker": 2}, "'posted'"),
        ("PUT", "/rate-limits/egress:1", {"per_worker": 2}, "'posted'"),
        ("PUT", "/admin/queues/posted/rate-limit", {"per_worker": 2}, "'posted'"),
        ("POST", "/jobs", job(rate_limit={"key": "egress:3", "per_worker": 1}), ""),
    ):
        _, message = error_of(api.ask(method, path, body, status=400))
        assert (word in message, REMEDY in message) == (True, True)
    assert not RateLimitKey.objects.exclude(per_worker=None, override_per_worker=None).exists()


def test_a_request_is_refused_that_gives_a_queue_with_such_a_limit_to_the_broker(api: Api) -> None:
    config, limits = "/admin/queues/mail/config", "/admin/queues/mail/rate-limit"
    api.ask("PUT", limits, {"per_worker": 2})
    _, message = error_of(api.ask("PUT", config, {"delivery": "broker"}, status=400))
    assert ("'queue:mail'" in message, REMEDY in message) == (True, True)
    api.ask("PUT", limits, {"per_worker": None})
    api.ask("PUT", config, {"delivery": "broker"})
    assert Queue.objects.get(name="mail").delivery == "broker"


# The record of changes


def test_what_is_changed_over_http_is_recorded_with_its_token(holder: Holder) -> None:
    RateLimitKey.objects.declare("api", concurrency=5)
    http = holder("admin", name="ops")
    http.ask("PUT", "/rate-limits/api", {"concurrency": 0})
    http.ask("DELETE", "/rate-limits/api")
    http.post("/queues/mail/pause", {"reason": "the provider moves"})
    http.post("/admin/queues/mail/resume")
    http.ask("PUT", "/admin/queues/mail/rate-limit", {"concurrency": 2})
    http.ask("PUT", "/admin/queues/mail/config", {"concurrency": 4})
    assert [*KeyChange.objects.order_by("id").values_list("verb", "actor", "source")] == [
        (verb, "token:ops", "http") for verb in ("override", "end_override", "pause", "resume", "limit", "limit")
    ]
    assert KeyChange.objects.get(verb="pause").reason == "the provider moves"


def test_a_key_that_a_worker_blocks_is_recorded_with_its_token_and_message(holder: Holder) -> None:
    holder("admin", name="ops").push(options={"keys": ["egress:1"], "queue": "mail"})
    worker = holder("fetch:mail", name="mailer")
    (job,) = worker.fetch("mail")
    error = {"message": "429 from the provider", "rate_limit_until": "+PT60S"}
    worker.post("/workers/nack", {"job_id": job["id"], "error": error})
    (change,) = KeyChange.objects.values_list("verb", "actor", "source", "key", "reason")
    assert change == ("block", "token:mailer", "http", "egress:1", "429 from the provider")


@pytest.mark.parametrize("body", [{"until": "2099-01-01T00:00:00Z"}, {"reson": "x"}])
@pytest.mark.parametrize("path", ["/queues/mail", "/admin/queues/mail"])
def test_a_pause_refuses_what_it_does_not_keep(api: Api, path: str, body: dict[str, str]) -> None:
    for verb in ("pause", "resume"):
        error = api.post(f"{path}/{verb}", body, status=400)["error"]
        assert error["details"]["field"] == next(iter(body))
        assert ("expires_at" in error["message"]) == ("until" in body)
    assert not KeyChange.objects.exists()
    assert api.ask("POST", f"{path}/pause", b"")["paused"]
