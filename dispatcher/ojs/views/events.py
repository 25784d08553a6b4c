"""Events: asked for, and followed live (ojs-events, section 6; ojs-realtime)."""

import json
from collections.abc import Iterator
from datetime import timedelta
from time import monotonic, sleep

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from ninja import Router

from dispatcher.ojs.api import access_of
from dispatcher.ojs.events.event import moment
from dispatcher.ojs.events.live import LIVE
from dispatcher.ojs.events.query import Asked, after, latest, now
from dispatcher.ojs.long_poll import place
from dispatcher.ojs.responses import replies
from dispatcher.ojs.views.jobs import find
from dispatcher.ojs.wire import answer, invalid

router = Router(tags=["events"])

_USUAL, _MOST = 100, 1_000
_LOOK_S = 1.0
_HEARTBEAT_S = 15.0
_LONGEST = timedelta(minutes=5)
"""How long one stream lasts; the client comes back by itself, with the id of the last event that it saw."""


@router.get("/events", response=replies(), summary="What happened")
def asked_for(request: HttpRequest) -> HttpResponse:
    """List events, oldest first: those after `after`, or else the latest."""
    asked = _asked(request)
    _need(request, asked)
    most, cursor = _limit(request), request.GET.get("after")
    page = latest(asked, most) if cursor is None else after(asked, _known("after", cursor), most)
    return answer({"events": page.events, "cursor": page.cursor, "has_more": page.has_more})


@router.get("/events/stream", response=replies(), summary="What happens, live (SSE)")
def stream(request: HttpRequest) -> HttpResponse:
    """Tell events as they happen, as server-sent events."""
    asked = _asked(request)
    _need(request, asked)
    return _stream(request, asked)


@router.get("/jobs/{job_id}/events", response=replies(), summary="What happens to a job, live (SSE)")
def of_job(request: HttpRequest, job_id: str) -> HttpResponse:
    """Tell the events of one job as they happen."""
    call = find(job_id)
    access_of(request).need("read", call.queue)
    return _stream(request, Asked(job=call.id))


def _stream(request: HttpRequest, asked: Asked) -> HttpResponse:
    cursor = request.headers.get("Last-Event-ID")
    if cursor is None:
        cursor = now() if asked.job is None else ""
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    told = _told(request, asked, _known("Last-Event-ID", cursor))
    return StreamingHttpResponse(told, content_type="text/event-stream", headers=headers)  # type: ignore[return-value]


def _told(request: HttpRequest, asked: Asked, cursor: str) -> Iterator[str]:
    """Yield the events of a stream; one that may not wait ends after a read, and its client comes back."""
    # An id without data is no event, but where a client goes on that has seen none.
    yield f"id: {cursor}\nretry: 3000\n\n" if cursor else "retry: 3000\n\n"
    with place(request, _LONGEST) as granted:
        until, spoke = monotonic() + granted.total_seconds(), monotonic()
        while LIVE.holds(access_of(request)):
            page = LIVE.after(asked, cursor)
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
                spoke = monotonic()
            elif monotonic() - spoke > _HEARTBEAT_S:
                spoke = monotonic()
                yield ":heartbeat\n\n"
            sleep(_LOOK_S)


def _known(field: str, cursor: str) -> str:
    try:
        moment(cursor)
    except ValueError as error:
        raise invalid(field, f"{cursor!r} is not the id of an event; leave it out to begin anew.") from error
    return cursor


def _need(request: HttpRequest, asked: Asked) -> None:
    access_of(request).need("read", *asked.queues)


def _asked(request: HttpRequest) -> Asked:
    named = {name: tuple(word for word in request.GET.get(name, "").split(",") if word) for name in _FILTERS}
    return Asked(types=named["types"], queues=named["queues"], job_types=named["job_types"])


_FILTERS = ("types", "queues", "job_types")


def _limit(request: HttpRequest) -> int:
    given = request.GET.get("limit") or str(_USUAL)
    if not given.isascii() or not given.isdigit() or not 1 <= int(given[:9]) <= 10 * _MOST:
        raise invalid("limit", f"{given!r} must be a whole number from 1 to {_MOST}.")
    return min(int(given), _MOST)
