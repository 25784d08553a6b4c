"""Webhook delivery: each event of a subscription is posted by a call of its own (ojs-webhooks).

So a post is retried, limited and monitored like any other call, and never affects the job that it reports.
"""

import hashlib
import hmac
import json
from datetime import timedelta
from http import HTTPStatus
from itertools import islice
from time import time
from typing import Any, Final
from uuid import UUID

from dispatcher import api, sql
from dispatcher.celery.schedule import ensure_periodic
from dispatcher.errors import RateLimited, TargetRefused
from dispatcher.lifecycle.run import retry_after
from dispatcher.models import CallQueue
from dispatcher.ojs.errors import WebhookRefused
from dispatcher.ojs.events.event import cursor_at
from dispatcher.ojs.events.query import EventFilter, between
from dispatcher.ojs.events.source import posts_among, settled_at
from dispatcher.ojs.models import Subscription
from dispatcher.ojs.webhooks import egress
from dispatcher.request import Call

DELIVER: Final = "dispatcher.deliver_webhooks"
_EVERY_S: Final = 5
_POST: Final = "dispatcher.post_event"
_KEY: Final = "webhook:"
_BATCH: Final = 500
_LONGEST_WAIT: Final = timedelta(days=1)
_CLIENT_ERROR: Final = 4
"""The first digit of client error statuses."""
_RETRY: Final = {
    "max_attempts": 8,
    "initial_interval": timedelta(seconds=30),
    "backoff_coefficient": 4,
    "max_interval": timedelta(days=1),
    "non_retryable_errors": [TargetRefused.__name__, WebhookRefused.__name__],
    "on_exhaustion": "dead_letter",
}


def deliver_events() -> int:
    """Send a call for each undelivered event of each active subscription; return how many."""
    sent = 0
    for number in Subscription.objects.filter(is_active=True).values_list("id", flat=True):
        with sql.atomic():
            rows = Subscription.objects.select_for_update(skip_locked=True)
            subscription = rows.filter(id=number, is_active=True).first()
            sent += 0 if subscription is None else _deliver_to(subscription)
    return sent


def _deliver_to(subscription: Subscription) -> int:
    until = settled_at()
    # Created again if it was deleted: a key per subscription, so that one receiver's 429 stops no other.
    key = api.declare(key_of(subscription), {}).name
    found = between(EventFilter(types=subscription.events), subscription.delivered_cursor, until)
    sent = 0
    while batch := list(islice(found, _BATCH)):
        calls = [
            Call(task=_POST, args=[str(subscription.id), event], keys=[key], retry=_RETRY)
            for event in _without_own_posts(batch)
        ]
        sent += len(CallQueue.objects.send_many(calls))
    subscription.delivered_cursor = max(subscription.delivered_cursor, cursor_at(until))
    subscription.save(update_fields=["delivered_cursor"])
    return sent


def _without_own_posts(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out events of posts, whose delivery would cause further events without end."""
    jobs = {str(event["data"]["job_id"]) for event in events if "job_id" in event["data"]}
    posts = posts_among(jobs, _POST)
    return [
        event
        for event in events
        if event["data"].get("job_id") not in posts and not str(event["data"].get("key")).startswith(_KEY)
    ]


def key_of(subscription: Subscription) -> str:
    """Return the name of the key that all posts of a subscription spend."""
    return f"{_KEY}{subscription.id}"


def schedule() -> None:
    """Create beat's entry that delivers events every few seconds, unless it exists."""
    ensure_periodic(DELIVER, timedelta(seconds=_EVERY_S))


def post(subscription: str, event: dict[str, Any]) -> dict[str, Any]:
    """Post one event, signed; only a 2xx counts as delivered (ojs-webhooks, section 7.1).

    Raises RateLimited for this receiver alone on a Retry-After, WebhookRefused on another 4xx,
    TargetRefused if the address is not public, HTTPError on any other failure.
    """
    found = Subscription.objects.filter(id=UUID(subscription), is_active=True).first()
    if found is None:
        return {"status": "ended"}
    body = json.dumps(event, separators=(",", ":"))
    now = str(int(time()))
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "OJS-Webhook/1.0",
        "X-OJS-Event-Type": event["type"],
        "X-OJS-Delivery-ID": f"del_{event['id'].removeprefix('evt_')}",
        "X-OJS-Subscription-ID": f"sub_{found.id}",
        "X-OJS-Timestamp": now,
        "X-OJS-Signature": signature(found.secret, now, body),
    }
    response = egress.post(found.url, body.encode(), headers)
    if (wait := retry_after(response)) is not None:
        raise RateLimited(min(wait, _LONGEST_WAIT), key=key_of(found))
    if response.status_code != HTTPStatus.TOO_MANY_REQUESTS and response.status_code // 100 == _CLIENT_ERROR:
        message = f"the receiver answered {response.status_code} {response.reason}: correct the URL, or the receiver"
        raise WebhookRefused(message)
    response.raise_for_status()
    return {"status": response.status_code}


def signature(secret: str, at: str, body: str) -> str:
    """Return the signature of a post (ojs-webhooks, section 7)."""
    return "sha256=" + hmac.new(secret.encode(), f"{at}.{body}".encode(), hashlib.sha256).hexdigest()
