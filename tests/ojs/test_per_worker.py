"""Limits per worker over HTTP."""

import pytest

from dispatcher.api import any_of
from dispatcher.models import CallQueue, Queue, RateLimitKey
from tests.ojs.http_client import Api, error_of

pytestmark = pytest.mark.django_db(transaction=True)

REMEDY = "deliver the queue directly or over HTTP, or limit the key by concurrency"


def spend(*keys: str, queue: str, delivery: str) -> None:
    """Send a call of a queue with this delivery."""
    Queue.objects.get_or_create(name=queue, defaults={"delivery": delivery})
    CallQueue.objects.send("t", queue=queue, keys=keys)


def limit_of(name: str) -> int | None:
    return RateLimitKey.objects.get(name=name).per_worker


# The admin


def test_a_queue_is_limited_per_worker_and_cleared_again_over_http(api: Api) -> None:
    path = "/admin/queues/mail/rate-limit"
    reply = api.ask("PUT", path, {"concurrency": 5, "per_worker": 2})
    assert reply["per_worker"] == {"limit": 2, "active": 0}
    jobs = [api.push(options={"queue": "mail"}) for _ in range(3)]
    assert len(api.fetch("mail", worker_id="one", count=3)) == 2
    assert api.get("/rate-limits/queue:mail")["per_worker"] == {"limit": 2, "active": 2}
    assert "per_worker" not in api.ask("PUT", path, {"per_worker": None})
    assert [job["id"] for job in api.fetch("mail", worker_id="one", count=3)] == [jobs[2]["id"]]
    assert limit_of("queue:mail") is None


def test_a_job_makes_a_key_with_a_limit_per_worker(api: Api) -> None:
    api.push(options={"rate_limit": {"key": "exports", "per_worker": 1}})
    assert api.get("/rate-limits/exports")["per_worker"] == {"limit": 1, "active": 0}
    refused = api.post(
        "/jobs",
        {"type": "t", "args": [], "options": {"rate_limit": {"key": "other", "per_worker": 0}}},
        status=400,
    )
    assert "per_worker" in str(refused["error"])


def test_requests_are_refused_that_limit_per_worker_what_the_broker_delivers(api: Api) -> None:
    RateLimitKey.objects.declare("exports", concurrency=5)
    RateLimitKey.objects.declare("egress:1", concurrency=5)
    spend("exports", any_of("egress:*"), queue="posted", delivery="broker")
    for method, path in (
        ("PUT", "/rate-limits/exports"),
        ("PUT", "/rate-limits/egress:1"),
        ("PUT", "/admin/queues/posted/rate-limit"),
    ):
        _, message = error_of(api.ask(method, path, {"per_worker": 2}, status=400))
        assert "'posted'" in message
        assert REMEDY in message
    job = {"type": "t", "args": [], "options": {"rate_limit": {"key": "egress:2", "per_worker": 1}}}
    _, message = error_of(api.post("/jobs", job, status=400))
    assert REMEDY in message
    assert not RateLimitKey.objects.exclude(per_worker=None, override_per_worker=None).exists()


def test_a_request_is_refused_that_gives_a_queue_with_such_a_limit_to_the_broker(api: Api) -> None:
    api.ask("PUT", "/admin/queues/mail/rate-limit", {"per_worker": 2})
    config = "/admin/queues/mail/config"
    _, message = error_of(api.ask("PUT", config, {"delivery": "broker"}, status=400))
    assert "'queue:mail'" in message
    assert REMEDY in message
    api.ask("PUT", "/admin/queues/mail/rate-limit", {"per_worker": None})
    api.ask("PUT", config, {"delivery": "broker"})
    assert Queue.objects.get(name="mail").delivery == "broker"
