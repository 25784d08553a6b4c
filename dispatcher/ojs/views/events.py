"""Events: listed, streamed live, and posted to webhooks (ojs-events, section 6; ojs-realtime; ojs-webhooks)."""

import json
import secrets
from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from time import monotonic, sleep

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from ninja import Query, Status

from dispatcher.celery.schedule import ensure_periodic
from dispatcher.ojs import fields, webhooks
from dispatcher.ojs.admin_requests import SubscriptionIn, SubscriptionPatch
from dispatcher.ojs.api import ADMIN, access_of
from dispatcher.ojs.events import query
from dispatcher.ojs.events.event import time_of
from dispatcher.ojs.events.live import LIVE
from dispatcher.ojs.events.query import EventFilter, latest, now
from dispatcher.ojs.long_poll import reserve_wait
from dispatcher.ojs.models import Subscription
from dispatcher.ojs.pagination import PageIn, QueryString, paginate
from dispatcher.ojs.responses import Answer, Routes, replies
from dispatcher.ojs.views.jobs import find_for
from dispatcher.ojs.wire import invalid, parse_id, the_one

router = Routes(tags=["events"])

_USUAL, _MOST = 100, 1_000
_PREFIX = "sub_"
_POLL_S = 1.0
_HEARTBEAT_S = 15.0
_LONGEST = timedelta(minutes=5)
"""How long one stream lasts; the client reconnects with the id of its last event."""


class EventsIn(QueryString):
    """Which events: of these types (`job.*` for a family), queues and types of jobs, each list with commas."""

    types: str | None = None
    queues: str | None = None
    job_types: str | None = None


class EventsPageIn(EventsIn):
    """Which events, and how many."""

    limit: fields.Whole | None = None


@router.get("/events")
def list_events(request: HttpRequest, given: Query[EventsPageIn], after: str | None = None) -> Answer:
    """List events, oldest first: those after `after`, or else the latest."""
    wanted, most = _event_filter(request, given), min(given.limit or _USUAL, _MOST)
    return asdict(latest(wanted, most) if after is None else query.after(wanted, _check_cursor("after", after), most))


@router.get("/events/stream")
def stream(request: HttpRequest, given: Query[EventsIn]) -> HttpResponse:
    """Stream events as they appear, as server-sent events (SSE)."""
    return _stream(request, _event_filter(request, given))


@router.get("/jobs/{job_id}/events")
def stream_job(request: HttpRequest, job_id: str) -> HttpResponse:
    """Stream the events of one job as they appear (SSE)."""
    return _stream(request, EventFilter(call=find_for(request, "read", job_id).id))


def _stream(request: HttpRequest, wanted: EventFilter) -> HttpResponse:
    cursor = request.headers.get("Last-Event-ID")
    if cursor is None:
        cursor = now() if wanted.call is None else ""
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    lines = _event_lines(request, wanted, _check_cursor("Last-Event-ID", cursor))
    return StreamingHttpResponse(lines, content_type="text/event-stream", headers=headers)  # type: ignore[return-value]


def _event_lines(request: HttpRequest, wanted: EventFilter, cursor: str) -> Iterator[str]:
    """Yield the events of a stream; one that may not wait ends after one read, and its client reconnects."""
    # An id without data is not an event: a client without events continues after it.
    yield f"id: {cursor}\nretry: 3000\n\n" if cursor else "retry: 3000\n\n"
    with reserve_wait(request, _LONGEST) as granted:
        until, sent_at = monotonic() + granted.total_seconds(), monotonic()
        while LIVE.is_valid(access_of(request)):
            page = LIVE.after(wanted, cursor)
            cursor = page.cursor
            for event in page.events:
                yield f"event: {event['type']}\nid: {event['id']}\ndata: {json.dumps(event)}\n\n"
            if page.has_more:
                yield f"id: {cursor}\n\n"
            if monotonic() >= until:
                break
            if page.has_more:
                continue
            if page.events:
                sent_at = monotonic()
            elif monotonic() - sent_at > _HEARTBEAT_S:
                sent_at = monotonic()
                yield ":heartbeat\n\n"
            sleep(_POLL_S)


def _check_cursor(field: str, cursor: str) -> str:
    try:
        time_of(cursor)
    except ValueError as error:
        raise invalid(field, f"{cursor!r} is not the id of an event; omit it to start with the latest.") from error
    return cursor


def _event_filter(request: HttpRequest, given: EventsIn) -> EventFilter:
    """Return the requested filter. Raises Problem unless all of its queues may be read."""
    lists = (given.types, given.queues, given.job_types)
    types, queues, tasks = (tuple(filter(None, (each or "").split(","))) for each in lists)
    wanted = EventFilter(types=types, queues=queues, tasks=tasks)
    access_of(request).require("read", *wanted.queues)
    return wanted


@router.post("/webhooks/subscriptions", response=replies(status=201), auth=ADMIN)
def subscribe(request: HttpRequest, wanted: SubscriptionIn) -> Status[Answer]:
    """Create a subscription; the response is the only one that contains its secret."""
    _check_url(wanted.url)
    made = Subscription.objects.create(
        url=wanted.url,
        events=wanted.events,
        secret=wanted.secret or f"whsec_{secrets.token_urlsafe(32)}",
        is_active=wanted.active is not False,
        # Earlier events are not delivered.
        delivered_cursor=now(),
    )
    made.refresh_from_db()
    ensure_periodic(webhooks.DELIVER, webhooks.EVERY)
    return Status(201, _body(made, secret=made.secret))


@router.get("/webhooks/subscriptions", auth=ADMIN)
def list_subscriptions(request: HttpRequest, page: Query[PageIn]) -> Answer:
    """List the subscriptions."""
    found = paginate(page, Subscription.objects.all(), order=["id"])
    return {"subscriptions": [_body(each)["subscription"] for each in found.rows], "pagination": found.pagination}


@router.get("/webhooks/subscriptions/{number}", auth=ADMIN)
def get_subscription(request: HttpRequest, number: str) -> Answer:
    """Show a subscription."""
    return _body(_find(number))


@router.patch("/webhooks/subscriptions/{number}", auth=ADMIN)
def change(request: HttpRequest, number: str, wanted: SubscriptionPatch) -> Answer:
    """Change the URL or the events of a subscription, enable or disable it."""
    found = _find(number)
    if wanted.url:
        _check_url(wanted.url)
    found.url = wanted.url or found.url
    found.events = wanted.events or found.events
    if wanted.active is not None:
        found.is_active, found.failing_since = wanted.active, None
    # Without the cursor: a delivery may move it meanwhile.
    found.save(update_fields=["url", "events", "is_active", "failing_since"])
    return _body(found)


@router.delete("/webhooks/subscriptions/{number}", auth=ADMIN)
def remove(request: HttpRequest, number: str) -> Answer:
    """Delete a subscription; no more events are posted to it."""
    _find(number).delete()
    return {"deleted": True, "id": number}


def _check_url(url: str) -> None:
    if (problem := webhooks.problem_of(url)) is not None:
        raise invalid("url", problem)


def _find(number: str) -> Subscription:
    wanted = parse_id("subscription", number.removeprefix(_PREFIX))
    return the_one(Subscription.objects.filter(id=wanted), "subscription", number)


def _body(each: Subscription, **more: str) -> Answer:
    body = {"id": f"{_PREFIX}{each.id}", "url": each.url, "events": each.events, "active": each.is_active, **more}
    body |= {"failing_since": each.failing_since, "created_at": each.created_at}
    return {**body, "subscription": body}
