"""Queues, pools of queues, and rate limits (ojs-http-binding, ojs-fair-scheduling, ojs-rate-limiting)."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Final

from django.http import HttpRequest
from ninja import Query, Status

from dispatcher import api, engine, sql
from dispatcher.history import By
from dispatcher.lifecycle import control
from dispatcher.models import CallQueue, Lane, Queue, RateLimitKey
from dispatcher.ojs.admin_requests import LimitIn, ObserveIn, OverrideIn, PauseIn, PoolIn
from dispatcher.ojs.api import ADMIN, READ, access_of
from dispatcher.ojs.enqueue import create_queues, queue_name
from dispatcher.ojs.models import Pool
from dispatcher.ojs.pagination import ROW_LIMIT, PageIn, paginate
from dispatcher.ojs.responses import Answer, ItemsReply, RateLimitReply, Routes, replies
from dispatcher.ojs.wire import invalid, missing, parse_time, the_one, without_nulls
from dispatcher.reports import KeyStatus, rate_limit_status, runnable_calls
from dispatcher.states import Delivery

router = Routes(tags=["queues"])

LIST_COUNT_LIMIT: Final = 1_000
"""The limit of the counts where many queues are listed; for one queue, ROW_LIMIT."""
_NAME_ONE = "name at least one of concurrency, per_worker, rate and throttle"
_FOR_NOW = timedelta(hours=1)
"""The default duration of an override."""


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


@router.get("/queues", auth=READ)
def queues(request: HttpRequest, page: Query[PageIn]) -> Answer:
    """List the queues that were named over HTTP, are configured, or were served by a Celery worker."""
    found = paginate(page, Queue.objects.all(), order=["name"])
    states = queue_states([queue.name for queue in found.rows])
    listed = [{**render_queue(queue), "status": states[queue.name]} for queue in found.rows]
    return {"queues": listed, "pagination": found.pagination}


@router.get("/queues/{name}/stats")
def stats(request: HttpRequest, name: str) -> Answer:
    """Count a queue's jobs."""
    access_of(request).require("read", queue_name(name))
    calls = CallQueue.objects.filter(lane=None, finished_at=None, queue=name)
    if not any(rows.exists() for rows in (Queue.objects.filter(name=name), Lane.objects.filter(queue=name), calls)):
        raise missing("queue", name)
    counts, state = count_calls([name], most=ROW_LIMIT)[name], queue_states([name])[name]
    numbers = without_nulls({**asdict(counts), "name": None})
    return {
        "counts_up_to": ROW_LIMIT,
        "queue": {"name": name, "paused": state == "paused", **numbers},
        "status": state,
        "runnable": next((each.as_json() for each in runnable_calls([name])), None),
        "stats": {**numbers, "queue": name, "depth": counts.available + counts.scheduled + counts.retryable},
        "computed_at": sql.now(),
    }


@router.post("/admin/queues/{name}/pause", auth=ADMIN)
@router.post("/queues/{name}/pause", auth=ADMIN)
def pause(request: HttpRequest, name: str, wanted: PauseIn | None = None) -> Answer:
    """Start no job of a queue, over HTTP or in Celery; running jobs continue."""
    return _switch(request, name, wanted, is_paused=True)


@router.post("/admin/queues/{name}/resume", auth=ADMIN)
@router.post("/queues/{name}/resume", auth=ADMIN)
def resume(request: HttpRequest, name: str, wanted: PauseIn | None = None) -> Answer:
    """Start jobs of a queue again."""
    return _switch(request, name, wanted, is_paused=False)


@router.put("/admin/pools/{name}", response=replies() | replies(status=201), auth=ADMIN)
def set_pool(request: HttpRequest, name: str, wanted: PoolIn) -> Status[Answer]:
    """Set the queues of a pool, and the order in which a fetch reads them."""
    weights = dict(wanted.weights or {})
    if isinstance(wanted.queues, list):
        weights = {queue: weights.get(queue, 1.0) for queue in wanted.queues}
    else:
        weights = {queue: each.weight for queue, each in wanted.queues.items()} | weights
    for queue in weights:
        queue_name(queue)
    if not weights:
        raise invalid("queues", "must name at least one queue.")
    defaults = {"strategy": wanted.strategy or "round-robin", "weights": weights}
    _, is_new = Pool.objects.update_or_create(name=name[:255], defaults=defaults)
    return Status(201 if is_new else 200, get_pool(request, name[:255]))


@router.get("/admin/pools", response=replies(ItemsReply), auth=READ)
def list_pools(request: HttpRequest, page: Query[PageIn]) -> Answer:
    """List the pools."""
    # The names of the queues are written twice.
    found = paginate(page, Pool.objects.all(), order=["name"], default=200, large="weights", times=2)
    return {"items": [_render_pool(pool) for pool in found.rows], "pagination": found.pagination}


@router.get("/admin/pools/{name}", auth=READ)
def get_pool(request: HttpRequest, name: str) -> Answer:
    """Show a pool."""
    body = _render_pool(the_one(Pool.objects.filter(name=name), "pool", name))
    return {**body, "pool": body}


@router.get("/admin/scheduling/stats", auth=READ)
def shares(request: HttpRequest, page: Query[PageIn]) -> Answer:
    """List the queues with their shares of the jobs completed in the last minute, and the wait of their jobs."""
    found = paginate(page, Queue.objects.all(), order=["name"], default=200)
    counts = count_calls([queue.name for queue in found.rows])
    total = sum(each.completed_last_minute for each in counts.values()) or 1
    queues = [
        {
            "name": name,
            "dispatch_count_1m": each.completed_last_minute,
            "dispatch_ratio_1m": round(each.completed_last_minute / total, 4),
            "avg_wait_ms": each.wait_ms or 0,
            "active_jobs": each.active,
        }
        for name, each in counts.items()
    ]
    body = {"queues": queues, "window": "PT1M", "counts_up_to": LIST_COUNT_LIMIT}
    return {**body, "stats": body, "pagination": found.pagination}


@router.get("/rate-limits", response=replies(ItemsReply), auth=READ)
def limits(request: HttpRequest, page: Query[PageIn]) -> Answer:
    """List the keys."""
    found = paginate(page, RateLimitKey.objects.only("name"), order=["name"], default=20)
    names = [key.name for key in found.rows]
    statuses = {status.name: status for status in rate_limit_status(names)} if names else {}
    items = [_render_key(statuses[name]) for name in names if name in statuses]
    return {"items": items, "pagination": found.pagination}


@router.get("/rate-limits/{key}", response=replies(RateLimitReply), auth=READ)
def limit(request: HttpRequest, key: str) -> Answer:
    """Show a key: its limits, their use, and the number of waiting jobs."""
    for status in rate_limit_status([key]):
        return _render_key(status)
    raise missing("rate_limit", key)


@router.put("/rate-limits/{key}", response=replies(RateLimitReply), auth=ADMIN)
def override(request: HttpRequest, key: str, limits: OverrideIn) -> Answer:
    """Override limits until `expires_at` (by default one hour); absent ones do not change."""
    given = without_nulls(limits.named())
    if not given:
        raise invalid("concurrency", f"{_NAME_ONE}.")
    now = sql.now()
    until = parse_time("expires_at", limits.expires_at) or now + _FOR_NOW
    if until <= now:
        raise invalid("expires_at", "has passed; give a time in the future.")
    oversized = api.override(key, until=until, by=access_of(request).actor(), **given)
    return {**limit(request, key), "oversized_count": oversized}


@router.patch("/rate-limits/{key}", response=replies(RateLimitReply), auth=ADMIN)
def observe(request: HttpRequest, key: str, wanted: ObserveIn) -> Answer:
    """Let the limits of a key stop nothing, and count what they would delay; or enforce them again."""
    by = access_of(request).actor(wanted.reason or "")
    oversized = 0
    if wanted.observe:
        api.observe(key, by=by)
    else:
        oversized = api.enforce(key, by=by)
    return {**limit(request, key), "oversized_count": oversized}


@router.delete("/rate-limits/{key}", response=replies(RateLimitReply), auth=ADMIN)
def end_override(request: HttpRequest, key: str) -> Answer:
    """Put a key's own limits in force again."""
    limit(request, key)
    oversized = api.end_override(key, by=access_of(request).actor())
    return {**limit(request, key), "oversized_count": oversized}


@router.put("/admin/queues/{name}/rate-limit", response=replies(RateLimitReply), auth=ADMIN)
def limit_queue(request: HttpRequest, name: str, limits: LimitIn) -> Answer:
    """Store the given limits of a queue; they apply to each of its jobs, in addition to the job's own keys."""
    given = limits.named()
    if not given:
        raise invalid("concurrency", f"{_NAME_ONE}; null removes a limit.")
    with sql.patient(f"the queue {name!r}"):
        create_queues([queue_name(name)])
        store_limits(name, given, by=access_of(request).actor())
    engine.dispense_briefly()
    oversized = api.count_oversized(f"queue:{name}", {}, keeps_others=True)
    return {**limit(request, f"queue:{name}"), "oversized_count": oversized}


def store_limits(queue: str, limits: Mapping[str, Any], *, by: By) -> None:
    """Store some limits of a queue; the caller dispenses after the commit."""
    api.declare(f"queue:{queue}", {})
    control.limit(f"queue:{queue}", limits, keeps_others=True, by=by)


def render_queue(queue: Queue) -> Answer:
    """Return what both lists of queues show of a row."""
    served_by = "http" if queue.delivery == Delivery.HTTP else "celery"
    return {"name": queue.name, "served_by": served_by, "created_at": queue.created_at}


def count_calls(names: Sequence[str], *, most: int = LIST_COUNT_LIMIT) -> dict[str, Counts]:
    """Count the calls of queues up to a limit, by queue name."""
    params = {"queues": list(names), "most": most, "recent": most // 10}
    return {counts.name: counts for counts in sql.fetch("report_queues", Counts, params)}


def queue_states(names: Sequence[str]) -> dict[str, str]:
    """Return whether each of these queues is active or paused."""
    keys = RateLimitKey.objects.filter(name__in=[f"queue:{name}" for name in names], is_paused=True)
    paused = set(keys.values_list("name", flat=True))
    return {name: "paused" if f"queue:{name}" in paused else "active" for name in names}


def _switch(request: HttpRequest, name: str, wanted: PauseIn | None, *, is_paused: bool) -> Answer:
    """Pause or resume a queue by its own key, and return its state."""
    create_queues([queue_name(name)])
    api.declare(f"queue:{name}", {})
    change = api.pause if is_paused else api.resume
    change(f"queue:{name}", by=access_of(request).actor((wanted and wanted.reason) or ""))
    body = {"name": name, "paused": is_paused, "paused_at" if is_paused else "resumed_at": sql.now()}
    return {**body, "queue": body, "status": "paused" if is_paused else "active"}


def _render_key(status: KeyStatus) -> Answer:
    """Return a key as `rate_limit_status --json` does, without nulls."""
    fields = status.as_json().items()
    return without_nulls({name: without_nulls(value) if isinstance(value, dict) else value for name, value in fields})


def _render_pool(pool: Pool) -> Answer:
    about = {"name": pool.name, "queues": list(pool.weights), "strategy": pool.strategy, "weights": pool.weights}
    return {**about, "created_at": pool.created_at}
