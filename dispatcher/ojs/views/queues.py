"""Queues: listed, counted, paused and resumed (ojs-http-binding, section 11)."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from ninja import Router

from dispatcher import api, sql
from dispatcher.conf import conf
from dispatcher.history import Actor
from dispatcher.models import CallQueue, Lane, Queue, RateLimitKey
from dispatcher.ojs.api import access_of
from dispatcher.ojs.pagination import MANY, page
from dispatcher.ojs.queues import known_queues, queue_name
from dispatcher.ojs.requests import PauseIn, reason_of
from dispatcher.ojs.responses import replies
from dispatcher.ojs.wire import answer, missing, stamp
from dispatcher.states import Delivery

router = Router(tags=["queues"])

LISTED: Final = 1_000
"""How far the calls of a queue are counted where many queues are listed; of one queue, up to MANY."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How many calls of a queue are in which state, up to a bound; and how it went of late, by a tenth as many ends.

    Above that, what ended in an hour or a minute is estimated from how long the latest ends took.
    """

    name: str
    available: int
    active: int
    scheduled: int
    retryable: int
    completed: int
    discarded: int
    cancelled: int
    completed_last_hour: int
    failed_last_hour: int
    completed_last_minute: int
    failed_last_minute: int
    duration_ms: float | None
    wait_ms: float | None

    def as_json(self) -> dict[str, Any]:
        """Return the numbers that are known."""
        return {field: value for field, value in asdict(self).items() if value is not None and field != "name"}


@router.get("/queues", response=replies(), summary="The queues")
def queues(request: HttpRequest) -> HttpResponse:
    """List the queues that were named over HTTP, are set up, or were served by a worker of Celery's."""
    access_of(request).need("read")
    found = page(request, Queue.objects.using(conf().database).all(), order=["name"])
    paused = paused_of([queue.name for queue in found.rows])
    listed = [
        {
            "name": queue.name,
            "status": "paused" if queue.name in paused else "active",
            "served_by": "http" if queue.delivery == Delivery.HTTP else "celery",
            "created_at": stamp(queue.created_at),
        }
        for queue in found.rows
    ]
    return answer({"queues": listed, "pagination": found.pagination})


@router.get("/queues/{name}/stats", response=replies(), summary="How full a queue is")
def stats(request: HttpRequest, name: str) -> HttpResponse:
    """Count a queue's jobs."""
    access_of(request).need("read", queue_name(name))
    counts = counted(name)
    is_paused = name in paused_of([name])
    told = counts.as_json()
    depth = counts.available + counts.scheduled + counts.retryable
    body = {
        "counts_up_to": MANY,
        "queue": {"name": name, "paused": is_paused, **told},
        "status": "paused" if is_paused else "active",
        "stats": {**told, "queue": name, "depth": depth},
        "computed_at": stamp(sql.now()),
    }
    return answer(body)


@router.post("/queues/{name}/pause", response=replies(), summary="Pause a queue")
def pause(request: HttpRequest, name: str, wanted: PauseIn | None = None) -> HttpResponse:
    """Let nothing of a queue be fetched, or start in Celery; what runs goes on."""
    access_of(request).need("admin")
    return answer(paused(name, by=access_of(request).actor(reason_of(wanted))))


@router.post("/queues/{name}/resume", response=replies(), summary="Resume a queue")
def resume(request: HttpRequest, name: str, wanted: PauseIn | None = None) -> HttpResponse:
    """Let a queue go on."""
    access_of(request).need("admin")
    return answer(resumed(name, by=access_of(request).actor(reason_of(wanted))))


def paused(name: str, *, by: Actor) -> dict[str, Any]:
    """Pause a queue by its own key, and say so."""
    known_queues([queue_name(name)])
    api.declare(f"queue:{name}", {})
    api.pause(f"queue:{name}", by=by)
    told = {"name": name, "paused": True, "paused_at": stamp(sql.now())}
    return {**told, "queue": told, "status": "paused"}


def resumed(name: str, *, by: Actor) -> dict[str, Any]:
    """Resume a queue, and say so."""
    known_queues([queue_name(name)])
    api.declare(f"queue:{name}", {})
    api.resume(f"queue:{name}", by=by)
    told = {"name": name, "paused": False, "resumed_at": stamp(sql.now())}
    return {**told, "queue": told, "status": "active"}


def counted(name: str) -> Counts:
    """Count a queue's calls. Raises Problem if nobody has heard of it."""
    database = conf().database
    is_known = (
        Queue.objects.using(database).filter(name=name).exists()
        or Lane.objects.using(database).filter(queue=name).exists()
        or CallQueue.objects.using(database).filter(lane=None, finished_at=None, queue=name).exists()
    )
    if not is_known:
        raise missing("queue", name)
    return counts_of([name], most=MANY)[name]


def counts_of(names: Sequence[str], *, most: int = LISTED) -> dict[str, Counts]:
    """Count the calls of queues up to a bound, by their names."""
    params = {"queues": list(names), "most": most, "recent": most // 10}
    return {counts.name: counts for counts in sql.fetch("report_queues", Counts, params)}


def paused_of(names: Sequence[str]) -> set[str]:
    """Return those of these queues that are paused."""
    keys = RateLimitKey.objects.using(conf().database).filter(name__in=[f"queue:{name}" for name in names])
    return {key.removeprefix("queue:") for key in keys.filter(is_paused=True).values_list("name", flat=True)}
