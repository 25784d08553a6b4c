"""Events: asked for, and followed live (ojs-events, section 6; ojs-realtime)."""

import json
from collections.abc import Iterator
from time import monotonic, sleep

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from ninja import Router

from dispatcher import sql
from dispatcher.web.ojs.api import access_of
from dispatcher.web.ojs.replies import replies
from dispatcher.web.ojs.stories import Asked, events
from dispatcher.web.ojs.views.jobs import find
from dispatcher.web.ojs.wire import answer, invalid

router = Router(tags=["events"])

_USUAL, _MOST = 100, 1_000
_LOOK_S = 1.0
_HEARTBEAT_S = 15.0
_LONGEST_S = 300.0
"""How long one stream lasts; the client comes back by itself, with the id of the last event that it saw."""


@router.get("/events", response=replies(), summary="What happened")
def asked_for(request: HttpRequest) -> HttpResponse:
    """List events, oldest first: those after `after`, or else the latest."""
    asked = _asked(request)
    _need(request, asked)
    most = _limit(request)
    after = request.GET.get("after")
    found = [event for event in events(asked) if after is None or event["id"] > after]
    told = found[:most] if after is not None else found[-most:]
    has_more = len(found) > len(told) and after is not None
    return answer({"events": told, "cursor": told[-1]["id"] if told else after, "has_more": has_more})


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
    after = request.headers.get("Last-Event-ID")
    if after is None and asked.job is None:
        after = max((event["id"] for event in events(asked)), default="")
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingHttpResponse(_told(asked, after or ""), content_type="text/event-stream", headers=headers)  # type: ignore[return-value]


def _told(asked: Asked, after: str) -> Iterator[str]:
    until, spoke = monotonic() + _LONGEST_S, monotonic()
    yield "retry: 3000\n\n"
    while monotonic() < until:
        for event in events(asked):
            if event["id"] > after:
                after, spoke = event["id"], monotonic()
                yield f"event: {event['type']}\nid: {event['id']}\ndata: {json.dumps(event)}\n\n"
        if monotonic() - spoke > _HEARTBEAT_S:
            spoke = monotonic()
            yield ":heartbeat\n\n"
        # A stream that waits holds no connection to the database.
        sql.connection().close()
        sleep(_LOOK_S)


def _need(request: HttpRequest, asked: Asked) -> None:
    access_of(request).need("read", *asked.queues)


def _asked(request: HttpRequest) -> Asked:
    named = {name: [word for word in request.GET.get(name, "").split(",") if word] for name in _FILTERS}
    return Asked(types=named["types"], queues=named["queues"], job_types=named["job_types"])


_FILTERS = ("types", "queues", "job_types")


def _limit(request: HttpRequest) -> int:
    given = request.GET.get("limit") or str(_USUAL)
    if not given.isascii() or not given.isdigit() or not 1 <= int(given[:9]) <= 10 * _MOST:
        raise invalid("limit", f"{given!r} must be a whole number from 1 to {_MOST}.")
    return min(int(given), _MOST)
