"""Pools: queues to fetch from together (ojs-fair-scheduling)."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Query

from dispatcher.models import Queue
from dispatcher.ojs.api import ADMIN, READ
from dispatcher.ojs.models import Pool
from dispatcher.ojs.pagination import json_bytes, paginate
from dispatcher.ojs.queries import PageIn
from dispatcher.ojs.queues import queue_name
from dispatcher.ojs.requests import PoolIn
from dispatcher.ojs.responses import ItemsReply, Routes, replies
from dispatcher.ojs.views.queues import LIST_COUNT_LIMIT, count_calls
from dispatcher.ojs.wire import ANSWER_BYTES, fitting, format_time, invalid, json_response, the_one

router = Routes(tags=["pools"])


@router.put("/admin/pools/{name}", response=replies() | replies(status=201), auth=ADMIN)
def configure(request: HttpRequest, name: str, wanted: PoolIn) -> HttpResponse:
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
    pools = Pool.objects
    defaults = {"strategy": wanted.strategy or "round-robin", "weights": weights}
    _, is_new = pools.update_or_create(name=name[:255], defaults=defaults)
    return _response(name[:255], 201 if is_new else 200)


@router.get("/admin/pools", response=replies(ItemsReply), auth=READ)
def list_pools(request: HttpRequest, page: Query[PageIn]) -> HttpResponse:
    """List the pools."""
    rows = Pool.objects.annotate(bytes=json_bytes("weights"))
    # The names of the queues are written twice.
    found = paginate(
        page,
        rows,
        order=["name"],
        default=200,
        fitting=lambda pools: fitting((pool.bytes for pool in pools), ANSWER_BYTES // 2),
    )
    return json_response({"items": [_render(pool) for pool in found.rows], "pagination": found.pagination})


@router.get("/admin/pools/{name}", auth=READ)
def get_pool(request: HttpRequest, name: str) -> HttpResponse:
    """Show a pool."""
    return _response(name)


@router.get("/admin/scheduling/stats", auth=READ)
def stats(request: HttpRequest, page: Query[PageIn]) -> HttpResponse:
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
    return json_response({**body, "stats": body, "pagination": found.pagination})


def _response(name: str, status: int = 200) -> HttpResponse:
    body = _render(the_one(Pool.objects.filter(name=name), "pool", name))
    return json_response({**body, "pool": body}, status)


def _render(pool: Pool) -> dict[str, Any]:
    about = {"name": pool.name, "queues": list(pool.weights), "strategy": pool.strategy, "weights": pool.weights}
    return {**about, "created_at": format_time(pool.created_at)}
