"""Pools: queues that are fetched from together (ojs-fair-scheduling)."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Router

from dispatcher.conf import conf
from dispatcher.models import Pool, Queue
from dispatcher.ojs.api import access_of
from dispatcher.ojs.pagination import page
from dispatcher.ojs.queues import queue_name
from dispatcher.ojs.requests import PoolIn
from dispatcher.ojs.responses import ItemsReply, replies
from dispatcher.ojs.views.queues import LISTED, counts_of
from dispatcher.ojs.wire import answer, invalid, missing, stamp

router = Router(tags=["pools"])


@router.put("/admin/pools/{name}", response={**replies(status=201), **replies()}, summary="Set a pool up")
def configure(request: HttpRequest, name: str, wanted: PoolIn) -> HttpResponse:
    """Say which queues belong together, and in which order a fetch of the pool looks at them."""
    access_of(request).need("admin")
    weights = dict(wanted.weights or {})
    if isinstance(wanted.queues, list):
        weights = {queue: weights.get(queue, 1.0) for queue in wanted.queues}
    else:
        weights = {queue: each.weight for queue, each in wanted.queues.items()} | weights
    for queue in weights:
        queue_name(queue)
    if not weights:
        raise invalid("queues", "must name at least one queue.")
    pools = Pool.objects.using(conf().database)
    defaults = {"strategy": wanted.strategy or "round-robin", "weights": weights}
    _, is_new = pools.update_or_create(name=name[:255], defaults=defaults)
    told = _written(pools.get(name=name[:255]))
    return answer({**told, "pool": told}, 201 if is_new else 200)


@router.get("/admin/pools", response=replies(ItemsReply), summary="The pools")
def listed(request: HttpRequest) -> HttpResponse:
    """List the pools."""
    access_of(request).need("read")
    found = [_written(pool) for pool in Pool.objects.using(conf().database).order_by("name")]
    return answer({"items": found, "pagination": {"total": len(found), "has_more": False, "page": 1}})


@router.get("/admin/pools/{name}", response=replies(), summary="A pool")
def shown(request: HttpRequest, name: str) -> HttpResponse:
    """Show a pool."""
    access_of(request).need("read")
    pool = Pool.objects.using(conf().database).filter(name=name).first()
    if pool is None:
        raise missing("pool", name)
    told = _written(pool)
    return answer({**told, "pool": told})


@router.get("/admin/scheduling/stats", response=replies(), summary="How the queues are served")
def stats(request: HttpRequest) -> HttpResponse:
    """List the queues with their shares of what was completed in the last minute, and how long their jobs wait."""
    access_of(request).need("read")
    found = page(request, Queue.objects.using(conf().database).all(), order=["name"], usual=200)
    counts = counts_of([queue.name for queue in found.rows])
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
    told = {"queues": queues, "window": "PT1M", "counts_up_to": LISTED}
    return answer({**told, "stats": told, "pagination": found.pagination})


def _written(pool: Pool) -> dict[str, Any]:
    about = {"name": pool.name, "queues": list(pool.weights), "strategy": pool.strategy, "weights": pool.weights}
    return {**about, "created_at": stamp(pool.created_at)}
