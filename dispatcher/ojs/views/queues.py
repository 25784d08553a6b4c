"""Queues: list, count, pause and resume (ojs-http-binding, section 11)."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from ninja import Query

from dispatcher import api, sql
from dispatcher.models import CallQueue, Lane, Queue, RateLimitKey
from dispatcher.ojs.api import READ, access_of
from dispatcher.ojs.pagination import ROW_LIMIT, paginate
from dispatcher.ojs.queries import PageIn
from dispatcher.ojs.queues import create_queues, queue_name
from dispatcher.ojs.requests import PauseIn
from dispatcher.ojs.responses import Routes
from dispatcher.ojs.wire import format_time, json_response, missing
from dispatcher.reports import runnable_calls
from dispatcher.states import Delivery

router = Routes(tags=["queues"])

LIST_COUNT_LIMIT: Final = 1_000
"""The limit of the counts where many queues are listed; for one queue, ROW_LIMIT."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """The number of a queue's calls in each state, up to a limit; and recent statistics, from a tenth as many ends.

    Above that, the ends of the last hour and minute are estimated from how long the latest ends took.
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
        """Return the known numbers."""
        return {field: value for field, value in asdict(self).items() if value is not None and field != "name"}


@router.get("/queues", auth=READ)
def queues(request: HttpRequest, page: Query[PageIn]) -> HttpResponse:
    """List the queues that were named over HTTP, are configured, or were served by a Celery worker."""
    found = paginate(page, Queue.objects.all(), order=["name"])
    paused = paused_queues([queue.name for queue in found.rows])
    states = {True: "paused", False: "active"}
    listed = [{**render_queue(queue), "status": states[queue.name in paused]} for queue in found.rows]
    return json_response({"queues": listed, "pagination": found.pagination})


@router.get("/queues/{name}/stats")
def stats(request: HttpRequest, name: str) -> HttpResponse:
    """Count a queue's jobs."""
    access_of(request).require("read", queue_name(name))
    counts = count_queue(name)
    is_paused = name in paused_queues([name])
    numbers = counts.as_json()
    depth = counts.available + counts.scheduled + counts.retryable
    body = {
        "counts_up_to": ROW_LIMIT,
        "queue": {"name": name, "paused": is_paused, **numbers},
        "status": "paused" if is_paused else "active",
        "runnable": next((each.as_json() for each in runnable_calls([name])), None),
        "stats": {**numbers, "queue": name, "depth": depth},
        "computed_at": format_time(sql.now()),
    }
    return json_response(body)


@router.post("/admin/queues/{name}/pause")
@router.post("/queues/{name}/pause")
def pause(request: HttpRequest, name: str, wanted: PauseIn | None = None) -> HttpResponse:
    """Start no job of a queue, over HTTP or in Celery; running jobs continue."""
    return switch_queue(request, name, wanted, is_paused=True)


@router.post("/admin/queues/{name}/resume")
@router.post("/queues/{name}/resume")
def resume(request: HttpRequest, name: str, wanted: PauseIn | None = None) -> HttpResponse:
    """Start jobs of a queue again."""
    return switch_queue(request, name, wanted, is_paused=False)


def switch_queue(request: HttpRequest, name: str, wanted: PauseIn | None, *, is_paused: bool) -> HttpResponse:
    """Pause or resume a queue by its own key, and return its state."""
    access_of(request).require("admin")
    create_queues([queue_name(name)])
    api.declare(f"queue:{name}", {})
    change = api.pause if is_paused else api.resume
    change(f"queue:{name}", by=access_of(request).actor((wanted and wanted.reason) or ""))
    body = {"name": name, "paused": is_paused, "paused_at" if is_paused else "resumed_at": format_time(sql.now())}
    return json_response({**body, "queue": body, "status": "paused" if is_paused else "active"})


def render_queue(queue: Queue) -> dict[str, Any]:
    """Return what both lists of queues show of a row."""
    served_by = "http" if queue.delivery == Delivery.HTTP else "celery"
    return {"name": queue.name, "served_by": served_by, "created_at": format_time(queue.created_at)}


def count_queue(name: str) -> Counts:
    """Count a queue's calls. Raises Problem if the queue is unknown."""
    is_known = (
        Queue.objects.filter(name=name).exists()
        or Lane.objects.filter(queue=name).exists()
        or CallQueue.objects.filter(lane=None, finished_at=None, queue=name).exists()
    )
    if not is_known:
        raise missing("queue", name)
    return count_calls([name], most=ROW_LIMIT)[name]


def count_calls(names: Sequence[str], *, most: int = LIST_COUNT_LIMIT) -> dict[str, Counts]:
    """Count the calls of queues up to a limit, by queue name."""
    params = {"queues": list(names), "most": most, "recent": most // 10}
    return {counts.name: counts for counts in sql.fetch("report_queues", Counts, params)}


def paused_queues(names: Sequence[str]) -> set[str]:
    """Return those of these queues that are paused."""
    keys = RateLimitKey.objects.filter(name__in=[f"queue:{name}" for name in names])
    return {key.removeprefix("queue:") for key in keys.filter(is_paused=True).values_list("name", flat=True)}
