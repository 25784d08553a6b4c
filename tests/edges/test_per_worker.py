"""Limits per worker at the edges: the admin's forms, and requests over HTTP."""

from typing import Any

import pytest
from django.test import Client

from dispatcher.api import any_of
from dispatcher.models import CallQueue, Queue, RateLimitKey
from tests.edges.ojs import Api, error_of
from tests.edges.pages import KEYS, act, post, read, url_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.django]

REMEDY = "deliver the queue directly or over HTTP, or limit the key by concurrency"


def spend(*keys: str, queue: str, delivery: str) -> None:
    """Send a call of a queue with this delivery."""
    Queue.objects.get_or_create(name=queue, defaults={"delivery": delivery})
    CallQueue.objects.send("t", queue=queue, keys=keys)


def broker_spends() -> None:
    """Have a call that the broker delivers, of a key and of a group."""
    for name in ("exports", "egress:1"):
        RateLimitKey.objects.declare(name, concurrency=5)
    spend("exports", any_of("egress:*"), queue="posted", delivery="broker")


def limit_of(name: str) -> int | None:
    return RateLimitKey.objects.get(name=name).per_worker


# The admin


def submit(client: Client, name: str, **fields: Any) -> str:
    """Create a key, or edit the one that exists."""
    return post(
        client, RateLimitKey.objects.filter(name=name).first() or url_of("ratelimitkey", "add"), name=name, **fields
    )


def test_a_key_is_made_edited_and_cleared_of_its_limit_per_worker_by_a_form(boss: Client) -> None:
    submit(boss, "exports", per_worker="2")
    assert limit_of("exports") == 2
    spend("exports", queue="mail", delivery="direct")
    submit(boss, "exports", per_worker="3")
    assert limit_of("exports") == 3
    assert "3 per worker" in read(boss, KEYS)
    form = {"weight": "1", "max_depth": "", "on_full": "reject", "warn_at": "0.5", "delivery": "broker"}
    assert "or remove per_worker from the key first" in post(boss, Queue.objects.get(), **form)
    submit(boss, "exports", per_worker="", concurrency="5")
    assert limit_of("exports") is None
    assert "greater than or equal to 1" in submit(boss, "exports", per_worker="0")
    post(boss, Queue.objects.get(), **form)
    assert Queue.objects.get().delivery == "broker"


def test_forms_refuse_a_limit_or_override_per_worker_where_the_broker_delivers(boss: Client) -> None:
    broker_spends()
    for name in ("exports", "egress:1", "egress:2", "queue:posted"):
        page = submit(boss, name, per_worker="2")
        assert "posted" in page
        assert REMEDY in page
    override = {"apply": "1", "until_0": "2100-01-01", "until_1": "00:00", "per_worker": "2"}
    assert REMEDY in act(boss, KEYS, "override", RateLimitKey.objects.get(name="exports"), **override)
    assert not RateLimitKey.objects.exclude(per_worker=None, override_per_worker=None, override_until=None).exists()
    assert not RateLimitKey.objects.filter(name__in=["egress:2", "queue:posted"]).exists()


# HTTP


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
    none = {"type": "t", "args": [], "options": {"rate_limit": {"key": "other", "per_worker": 0}}}
    assert "per_worker" in str(api.post("/jobs", none, status=400)["error"])


def test_requests_are_refused_that_limit_per_worker_what_the_broker_delivers(api: Api) -> None:
    broker_spends()
    for path in ("/rate-limits/exports", "/rate-limits/egress:1", "/admin/queues/posted/rate-limit"):
        _, message = error_of(api.ask("PUT", path, {"per_worker": 2}, status=400))
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
