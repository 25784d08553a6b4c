"""Webhook delivery: each event of a subscription is posted by a call of its own (ojs-webhooks).

So a post is retried, limited and monitored like any other call, and never affects the job that it reports.
"""

import hashlib
import hmac
import json
import logging
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import timedelta
from http import HTTPStatus
from time import monotonic, time
from typing import Any, Final
from urllib.parse import urljoin, urlsplit
from uuid import UUID

import requests
from django.db.models.functions import Now

from dispatcher import api, outbound, sql
from dispatcher.errors import RateLimited, TargetRefused
from dispatcher.lifecycle.run import retry_after
from dispatcher.models import CallQueue
from dispatcher.ojs.errors import WebhookRefused
from dispatcher.ojs.events.query import EventFilter, after
from dispatcher.ojs.models import Subscription
from dispatcher.request import Call

logger = logging.getLogger(__name__)

DELIVER: Final = "dispatcher.deliver_webhooks"
EVERY: Final = timedelta(seconds=5)
_POST: Final = "dispatcher.post_event"
_KEY: Final = "webhook:"
_READ: Final = 10_000
_BATCH: Final = 500
_PATIENCE: Final = timedelta(days=3)
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
    """Send a call for each undelivered event of each active subscription; return how many.

    Subscriptions take turns, each with a batch in a transaction of its own: a backlog delays no other. What takes
    longer than 5 s is left to the next run.
    """
    sent, until = 0, monotonic() + EVERY.total_seconds()
    numbers = Subscription.objects.filter(is_active=True).values_list("id", flat=True)
    turns = deque(_deliver_to(number) for number in numbers)
    while turns and monotonic() < until:
        count = next(turns[0], None)
        if count is None:
            turns.popleft()
        else:
            sent += count
            turns.rotate(-1)
    return sent


def _deliver_to(number: UUID) -> Iterator[int]:
    """Send calls for the events of a subscription, until another run does or there are none; yield how many at once."""
    has_more = True
    while has_more and (found := Subscription.objects.filter(id=number, is_active=True).first()) is not None:
        # A page is read once: all events of one bulk request may have the same time.
        page = after(EventFilter(types=found.events), found.delivered_cursor, _READ)
        cursor, has_more = found.delivered_cursor, page.has_more
        for first in range(0, len(page.events) or 1, _BATCH):
            batch = page.events[first : first + _BATCH]
            upto = page.cursor if first + _BATCH >= len(page.events) else batch[-1]["id"]
            with sql.atomic():
                rows = Subscription.objects.filter(id=number, is_active=True, delivered_cursor=cursor)
                if not rows.update(delivered_cursor=upto):
                    return
                count = _send(found, batch)
            yield count
            cursor = upto


def _send(subscription: Subscription, events: list[dict[str, Any]]) -> int:
    # Created again if it was deleted: a key per subscription, so that one receiver's 429 stops no other.
    key = api.declare(key_of(subscription), {}).name
    calls = [
        Call(task=_POST, args=[str(subscription.id), event], keys=[key], retry=_RETRY)
        for event in _without_own_posts(events)
    ]
    return len(CallQueue.objects.send_many(calls))


def _without_own_posts(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out events of posts, whose delivery would cause further events without end."""
    jobs = {str(event["data"]["job_id"]) for event in events if "job_id" in event["data"]}
    found = CallQueue.objects.filter(id__in=jobs, task=_POST)
    posts = {str(number) for number in found.values_list("id", flat=True)}
    return [
        event
        for event in events
        if event["data"].get("job_id") not in posts and not str(event["data"].get("key")).startswith(_KEY)
    ]


def key_of(subscription: Subscription) -> str:
    """Return the name of the key that all posts of a subscription spend."""
    return f"{_KEY}{subscription.id}"


def post(subscription: str, event: dict[str, Any]) -> dict[str, Any]:
    """Post one event, signed; only a 2xx counts as delivered (ojs-webhooks, section 7.1).

    Raises RateLimited for this receiver alone on a Retry-After, WebhookRefused on another 4xx,
    TargetRefused if the address is not public, HTTPError on any other failure.
    A receiver at which every post has failed for three days is switched off.
    """
    rows = Subscription.objects.filter(id=UUID(subscription), is_active=True)
    if (found := rows.first()) is None:
        return {"status": "ended"}
    try:
        status = _post(found, event)
    except RateLimited:
        raise
    except Exception:
        rows.filter(failing_since=None).update(failing_since=Now())
        if rows.filter(failing_since__lt=Now() - _PATIENCE).update(is_active=False):
            logger.warning("subscription %s is switched off: every post to %s failed for 3 days", found.id, found.url)
        raise
    if found.failing_since is not None:
        rows.update(failing_since=None)
    return {"status": status}


def _post(found: Subscription, event: dict[str, Any]) -> int:
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
    response = _follow(found.url, body.encode(), headers)
    if (wait := retry_after(response)) is not None:
        raise RateLimited(min(wait, _LONGEST_WAIT), key=key_of(found))
    if response.status_code != HTTPStatus.TOO_MANY_REQUESTS and response.status_code // 100 == _CLIENT_ERROR:
        message = f"the receiver answered {response.status_code} {response.reason}: correct the URL, or the receiver"
        raise WebhookRefused(message)
    response.raise_for_status()
    return response.status_code


def signature(secret: str, at: str, body: str) -> str:
    """Return the signature of a post (ojs-webhooks, section 7)."""
    return "sha256=" + hmac.new(secret.encode(), f"{at}.{body}".encode(), hashlib.sha256).hexdigest()


_REDIRECTS: Final = 3
_REPEATED: Final = (
    HTTPStatus.MOVED_PERMANENTLY,
    HTTPStatus.FOUND,
    HTTPStatus.TEMPORARY_REDIRECT,
    HTTPStatus.PERMANENT_REDIRECT,
)
"""Redirects that repeat the POST; 303 asks for a GET, which delivers nothing."""


def problem_of(url: str) -> str | None:
    """Return why a webhook may not post to a URL, or None; the address is not resolved."""
    if (problem := outbound.problem_of(url)) is not None:
        return problem
    host = outbound.host_of(url)
    if urlsplit(url).scheme == "https" or outbound.is_allowed(host, host):
        return None
    return f"{url!r} is not https: the post could be read and changed in transit. Use https, {outbound.REMEDY}"


def _follow(url: str, body: bytes, headers: Mapping[str, str]) -> requests.Response:
    """Post, follow redirects, and return the response: a 2xx, or any status from 400.

    Raises TargetRefused if the target is not allowed, HTTPError if a redirect cannot be followed.
    """
    for _ in range(1 + _REDIRECTS):
        if (problem := problem_of(url)) is not None:
            raise TargetRefused(problem)
        response = outbound.request("post", url, data=body, headers=headers, allow_redirects=False, stream=True)
        if not HTTPStatus.MULTIPLE_CHOICES <= response.status_code < HTTPStatus.BAD_REQUEST:
            return response
        location = response.headers.get("Location", "")
        if response.status_code not in _REPEATED or not location:
            break
        url = urljoin(url, location)
    message = (
        f"{response.status_code} {response.reason}: it redirects to {location or 'nowhere'}, so nothing is delivered"
    )
    raise requests.HTTPError(message, response=response)
