"""Webhook subscriptions (ojs-webhooks)."""

import secrets
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from ninja import Router

from dispatcher.conf import conf
from dispatcher.models import Subscription
from dispatcher.ojs.api import access_of
from dispatcher.ojs.events.query import now
from dispatcher.ojs.pagination import page
from dispatcher.ojs.requests import SubscriptionIn, SubscriptionPatch, or_default
from dispatcher.ojs.responses import replies
from dispatcher.ojs.webhooks.deliver import schedule
from dispatcher.ojs.webhooks.egress import problem_of
from dispatcher.ojs.wire import answer, invalid, missing, stamp

router = Router(tags=["webhooks"])

_PREFIX = "sub_"


@router.post("/webhooks/subscriptions", response=replies(status=201), summary="Subscribe to events")
def subscribe(request: HttpRequest, wanted: SubscriptionIn) -> HttpResponse:
    """Have events posted; the secret that signs them is shown here, and never again."""
    access_of(request).need("admin")
    _check(wanted.url)
    made = Subscription.objects.using(conf().database).create(
        url=wanted.url,
        events=wanted.events,
        secret=wanted.secret or f"whsec_{secrets.token_urlsafe(32)}",
        is_active=or_default(wanted.active, default=True),
        # From now on: what was before is nobody's news.
        told_until=now(),
    )
    made.refresh_from_db()
    schedule()
    told = {**_written(made), "secret": made.secret}
    return answer({**told, "subscription": told}, 201)


@router.get("/webhooks/subscriptions", response=replies(), summary="The subscriptions")
def listed(request: HttpRequest) -> HttpResponse:
    """List the subscriptions."""
    access_of(request).need("admin")
    found = page(request, Subscription.objects.using(conf().database).all(), order=["id"])
    return answer({"subscriptions": [_written(each) for each in found.rows], "pagination": found.pagination})


@router.get("/webhooks/subscriptions/{number}", response=replies(), summary="A subscription")
def shown(request: HttpRequest, number: str) -> HttpResponse:
    """Show a subscription."""
    access_of(request).need("admin")
    told = _written(_find(number))
    return answer({**told, "subscription": told})


@router.patch("/webhooks/subscriptions/{number}", response=replies(), summary="Change a subscription")
def change(request: HttpRequest, number: str, wanted: SubscriptionPatch) -> HttpResponse:
    """Change where and what is posted, or whether."""
    access_of(request).need("admin")
    found = _find(number)
    if wanted.url:
        _check(wanted.url)
    found.url = wanted.url or found.url
    found.events = wanted.events or found.events
    found.is_active = or_default(wanted.active, found.is_active)
    # Not up to where it was told: that may go on meanwhile.
    found.save(update_fields=["url", "events", "is_active"])
    told = _written(found)
    return answer({**told, "subscription": told})


@router.delete("/webhooks/subscriptions/{number}", response=replies(), summary="End a subscription")
def remove(request: HttpRequest, number: str) -> HttpResponse:
    """Post no more events there."""
    access_of(request).need("admin")
    _find(number).delete()
    return answer({"deleted": True, "id": number})


def _check(url: str) -> None:
    if (problem := problem_of(url)) is not None:
        raise invalid("url", problem)


def _find(number: str) -> Subscription:
    try:
        wanted = UUID(number.removeprefix(_PREFIX))
    except ValueError as error:
        raise missing("subscription", number) from error
    found = Subscription.objects.using(conf().database).filter(id=wanted).first()
    if found is None:
        raise missing("subscription", number)
    return found


def _written(each: Subscription) -> dict[str, Any]:
    told = {"id": f"{_PREFIX}{each.id}", "url": each.url, "events": each.events, "active": each.is_active}
    return {**told, "created_at": stamp(each.created_at)}
