"""Webhook subscriptions (ojs-webhooks)."""

import secrets
from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Query

from dispatcher.celery.schedule import ensure_periodic
from dispatcher.ojs.api import ADMIN
from dispatcher.ojs.events.query import now
from dispatcher.ojs.models import Subscription
from dispatcher.ojs.pagination import paginate
from dispatcher.ojs.queries import PageIn
from dispatcher.ojs.requests import SubscriptionIn, SubscriptionPatch
from dispatcher.ojs.responses import Routes, replies
from dispatcher.ojs.webhooks import deliver
from dispatcher.ojs.webhooks.egress import problem_of
from dispatcher.ojs.wire import format_time, invalid, json_response, parse_id, the_one

router = Routes(tags=["webhooks"], auth=ADMIN)

_PREFIX = "sub_"


@router.post("/webhooks/subscriptions", response=replies(status=201))
def subscribe(request: HttpRequest, wanted: SubscriptionIn) -> HttpResponse:
    """Create a subscription; the response is the only one that contains its secret."""
    _check(wanted.url)
    made = Subscription.objects.create(
        url=wanted.url,
        events=wanted.events,
        secret=wanted.secret or f"whsec_{secrets.token_urlsafe(32)}",
        is_active=wanted.active is not False,
        # Earlier events are not delivered.
        delivered_cursor=now(),
    )
    made.refresh_from_db()
    ensure_periodic(deliver.DELIVER, deliver.EVERY)
    return _response({**_render(made), "secret": made.secret}, 201)


@router.get("/webhooks/subscriptions")
def list_subscriptions(request: HttpRequest, page: Query[PageIn]) -> HttpResponse:
    """List the subscriptions."""
    found = paginate(page, Subscription.objects.all(), order=["id"])
    return json_response({"subscriptions": [_render(each) for each in found.rows], "pagination": found.pagination})


@router.get("/webhooks/subscriptions/{number}")
def get_subscription(request: HttpRequest, number: str) -> HttpResponse:
    """Show a subscription."""
    return _response(_render(_find(number)))


@router.patch("/webhooks/subscriptions/{number}")
def change(request: HttpRequest, number: str, wanted: SubscriptionPatch) -> HttpResponse:
    """Change the URL or the events of a subscription, enable or disable it."""
    found = _find(number)
    if wanted.url:
        _check(wanted.url)
    found.url = wanted.url or found.url
    found.events = wanted.events or found.events
    if wanted.active is not None:
        found.is_active, found.failing_since = wanted.active, None
    # Without the cursor: a delivery may move it meanwhile.
    found.save(update_fields=["url", "events", "is_active", "failing_since"])
    return _response(_render(found))


@router.delete("/webhooks/subscriptions/{number}")
def remove(request: HttpRequest, number: str) -> HttpResponse:
    """Delete a subscription; no more events are posted to it."""
    _find(number).delete()
    return json_response({"deleted": True, "id": number})


def _check(url: str) -> None:
    if (problem := problem_of(url)) is not None:
        raise invalid("url", problem)


def _find(number: str) -> Subscription:
    wanted = parse_id("subscription", number.removeprefix(_PREFIX))
    return the_one(Subscription.objects.filter(id=wanted), "subscription", number)


def _response(body: dict[str, Any], status: int = 200) -> HttpResponse:
    return json_response({**body, "subscription": body}, status)


def _render(each: Subscription) -> dict[str, Any]:
    body = {"id": f"{_PREFIX}{each.id}", "url": each.url, "events": each.events, "active": each.is_active}
    return {**body, "failing_since": format_time(each.failing_since), "created_at": format_time(each.created_at)}
