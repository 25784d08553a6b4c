"""Limits per worker at the edges: the admin's forms, and requests over HTTP."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from dispatcher.api import any_of
from dispatcher.models import CallQueue, Queue, RateLimitKey

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.django]

REMEDY = "deliver the queue directly or over HTTP, or limit the key by concurrency"


def spend(*keys: str, queue: str, delivery: str) -> None:
    """Send a call of a queue with this delivery."""
    Queue.objects.get_or_create(name=queue, defaults={"delivery": delivery})
    CallQueue.objects.send("t", queue=queue, keys=keys)


def limit_of(name: str) -> int | None:
    return RateLimitKey.objects.get(name=name).per_worker


# The admin


def submit(client: Client, name: str, **fields: Any) -> str:
    """Create a key, or edit the one that exists."""
    key = RateLimitKey.objects.filter(name=name).first()
    add, change = reverse("admin:dispatcher_ratelimitkey_add"), "admin:dispatcher_ratelimitkey_change"
    url = add if key is None else reverse(change, args=[key.pk])
    return client.post(url, {"name": name, **fields}, follow=True).content.decode()


def test_a_key_is_made_edited_and_cleared_of_its_limit_per_worker_by_a_form(boss: Client) -> None:
    submit(boss, "exports", per_worker="2")
    assert limit_of("exports") == 2
    spend("exports", queue="mail", delivery="direct")
    submit(boss, "exports", per_worker="3")
    assert limit_of("exports") == 3
    assert "3 per worker" in boss.get(reverse("admin:dispatcher_ratelimitkey_changelist")).content.decode()
    submit(boss, "exports", per_worker="", concurrency="5")
    assert limit_of("exports") is None
    assert "greater than or equal to 1" in submit(boss, "exports", per_worker="0")


def test_a_form_refuses_a_limit_per_worker_where_the_broker_delivers(boss: Client) -> None:
    RateLimitKey.objects.declare("exports", concurrency=5)
    RateLimitKey.objects.declare("egress:1", concurrency=5)
    spend("exports", any_of("egress:*"), queue="posted", delivery="broker")
    for name in ("exports", "egress:1", "egress:2", "queue:posted"):
        page = submit(boss, name, per_worker="2")
        assert "posted" in page
        assert REMEDY in page
    assert not RateLimitKey.objects.exclude(per_worker=None).exists()
    assert not RateLimitKey.objects.filter(name__in=["egress:2", "queue:posted"]).exists()


def test_a_form_refuses_an_override_per_worker_where_the_broker_delivers(boss: Client) -> None:
    key = RateLimitKey.objects.declare("exports", concurrency=5)
    spend("exports", queue="posted", delivery="broker")
    data = {
        "action": "override",
        "_selected_action": [key.pk],
        "apply": "1",
        "until_0": "2100-01-01",
        "until_1": "00:00",
        "per_worker": "2",
    }
    url = reverse("admin:dispatcher_ratelimitkey_changelist")
    assert REMEDY in boss.post(url, data, follow=True).content.decode()
    key.refresh_from_db()
    assert (key.override_until, key.override_per_worker) == (None, None)


def test_a_form_refuses_the_broker_for_a_queue_whose_calls_have_a_limit_per_worker(boss: Client) -> None:
    RateLimitKey.objects.declare("exports", per_worker=2)
    spend("exports", queue="mail", delivery="direct")
    url = reverse("admin:dispatcher_queue_change", args=["mail"])
    form = {"weight": "1", "max_depth": "", "on_full": "reject", "warn_at": "0.5"}
    assert "or remove per_worker from the key first" in boss.post(url, {**form, "delivery": "broker"}).content.decode()
    submit(boss, "exports", per_worker="")
    boss.post(url, {**form, "delivery": "broker"})
    assert Queue.objects.get(name="mail").delivery == "broker"


# HTTP
