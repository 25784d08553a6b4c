"""Events: listed, and streamed live (ojs-events, section 6; ojs-realtime)."""

import json
from collections.abc import Iterator
from datetime import timedelta
from time import monotonic, sleep

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from ninja import Query

from dispatcher.ojs.api import access_of
from dispatcher.ojs.events import query
from dispatcher.ojs.events.event import time_of
from dispatcher.ojs.events.live import LIVE
from dispatcher.ojs.events.query import EventFilter, latest, now
from dispatcher.ojs.long_poll import reserve_wait
from dispatcher.ojs.queries import EventsIn, EventsPageIn
from dispatcher.ojs.responses import Routes
from dispatcher.ojs.views.jobs import find_for
from dispatcher.ojs.wire import invalid, json_response

router = Routes(tags=["events"])

_USUAL, _MOST = 100, 1_000
_POLL_S = 1.0
_HEARTBEAT_S = 15.0
_LONGEST = timedelta(minutes=5)
"""How long one stream lasts; the client reconnects with the id of its last event."""


@router.get("/events")
def list_events(request: HttpRequest, given: Query[EventsPageIn], after: str | None = None) -> HttpResponse:
    """List events, oldest first: those after `after`, or else the latest."""
    wanted, most = _event_filter(request, given), min(given.limit or _USUAL, _MOST)
    page = latest(wanted, most) if after is None else query.after(wanted, _check_cursor("after", after), most)
    return json_response({"events": page.events, "cursor": page.cursor, "has_more": page.has_more})


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
