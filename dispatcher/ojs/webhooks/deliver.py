"""Webhooks: events are posted to whoever subscribed, each as a call of its own (ojs-webhooks).

So a post is tried again, limited and watched like any other call, and what happens to it never touches the job.
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

from django.db import transaction

from dispatcher import api
from dispatcher.conf import conf
from dispatcher.errors import RateLimited, TargetRefused, WebhookRefused
from dispatcher.lifecycle.run import retry_after
from dispatcher.models import CallQueue, Subscription
from dispatcher.ojs.events.event import mark
from dispatcher.ojs.events.query import Asked, between
from dispatcher.ojs.events.source import posts_among, settled_at
from dispatcher.ojs.webhooks import egress
from dispatcher.request import Call

_TELL: Final = "dispatcher.tell"
_EVERY_S: Final = 5
_POST: Final = "dispatcher.post_event"
_KEY: Final = "webhook:"
_BATCH: Final = 500
_LONGEST_WAIT: Final = timedelta(days=1)
_CLIENT_ERROR: Final = 4
"""The first digit of the statuses that say that the fault is with the post."""
_RETRY: Final = {
    "max_attempts": 8,
    "initial_interval": timedelta(seconds=30),
    "backoff_coefficient": 4,
    "max_interval": timedelta(days=1),
    "non_retryable_errors": [TargetRefused.__name__, WebhookRefused.__name__],
    "on_exhaustion": "dead_letter",
}


def tell() -> int:
    """Send a call for each event that a subscription has not been told of; return how many."""
    told = 0
    database = conf().database
    for number in Subscription.objects.using(database).filter(is_active=True).values_list("id", flat=True):
        with transaction.atomic(using=database):
            rows = Subscription.objects.using(database).select_for_update(skip_locked=True)
            subscription = rows.filter(id=number, is_active=True).first()
            told += 0 if subscription is None else _tell(subscription)
    return told


def _tell(subscription: Subscription) -> int:
    until = settled_at()
    # Made anew if somebody has deleted it: a limit of its own, so that what this receiver says stops no other.
    key = api.declare(key_of(subscription), {}).name
    found = between(Asked(types=subscription.events), subscription.told_until, until)
    told = 0
    while batch := list(islice(found, _BATCH)):
        calls = [
            Call(task=_POST, args=[str(subscription.id), event], keys=[key], retry=_RETRY) for event in _wanted(batch)
        ]
        told += len(CallQueue.objects.send_many(calls))
    subscription.told_until = max(subscription.told_until, mark(until))
    subscription.save(update_fields=["told_until"])
    return told


def _wanted(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out what a post brings about: to tell of it would never end."""
    jobs = {str(event["data"]["job_id"]) for event in events if "job_id" in event["data"]}
    posts = posts_among(jobs, _POST)
    return [
        event
        for event in events
        if event["data"].get("job_id") not in posts and not str(event["data"].get("key")).startswith(_KEY)
    ]


def key_of(subscription: Subscription) -> str:
    """Return the name of the key that all posts to a subscription spend."""
    return f"{_KEY}{subscription.id}"


def schedule() -> None:
    """Have beat tell of events every few seconds, if it does not yet."""
    from django_celery_beat.models import IntervalSchedule, PeriodicTask  # noqa: PLC0415 -- optional app

    every = {"every": _EVERY_S, "period": IntervalSchedule.SECONDS}
    schedules = IntervalSchedule.objects.using(conf().database)
    interval = schedules.filter(**every).first() or schedules.create(**every)
    entries = PeriodicTask.objects.using(conf().database)
    entries.get_or_create(name=_TELL, defaults={"task": _TELL, "interval": interval, "queue": conf().dispenser_queue})


def post(subscription: str, event: dict[str, Any]) -> dict[str, Any]:
    """Post one event, signed; only a 2xx delivers it (ojs-webhooks, section 7.1).

    Raises RateLimited for this receiver alone if it says when to come again, WebhookRefused at another 4xx,
    TargetRefused at an address that is not public, HTTPError at anything else.
    """
    found = Subscription.objects.using(conf().database).filter(id=UUID(subscription), is_active=True).first()
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
    answer = egress.post(found.url, body.encode(), headers)
    if (wait := retry_after(answer)) is not None:
        raise RateLimited(min(wait, _LONGEST_WAIT), key=key_of(found))
    if answer.status_code != HTTPStatus.TOO_MANY_REQUESTS and answer.status_code // 100 == _CLIENT_ERROR:
        message = f"the receiver answered {answer.status_code} {answer.reason}: correct the URL, or the receiver"
        raise WebhookRefused(message)
    answer.raise_for_status()
    return {"status": answer.status_code}


def signature(secret: str, at: str, body: str) -> str:
    """Return the signature of a post (ojs-webhooks, section 7)."""
    return "sha256=" + hmac.new(secret.encode(), f"{at}.{body}".encode(), hashlib.sha256).hexdigest()
