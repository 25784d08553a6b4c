"""Limits per worker at the edges: the admin's forms, and requests over HTTP."""

from typing import Any

import pytest
from django.test import Client

from dispatcher.api import any_of
from dispatcher.models import CallQueue, Queue, RateLimitKey
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
