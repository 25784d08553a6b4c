"""Rate limits: looked at, and overridden for a time (ojs-rate-limiting, section 10)."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Router

from dispatcher import api, sql
from dispatcher.conf import conf
from dispatcher.engine.dispenser import serve_limited
from dispatcher.history import By
from dispatcher.lifecycle import control
from dispatcher.limits.policy import Rate
from dispatcher.models import RateLimitKey
from dispatcher.ojs.api import access_of
from dispatcher.ojs.pagination import page
from dispatcher.ojs.queues import known_queues, queue_name
from dispatcher.ojs.requests import LimitIn, OverrideIn, plain
from dispatcher.ojs.responses import ItemsReply, Limits, replies
from dispatcher.ojs.wire import answer, invalid, missing, read_moment, stamp, without_nulls
from dispatcher.reports import KeyStatus, rate_limit_status

router = Router(tags=["rate limits"])

_NAME_ONE = "name at least one of concurrency, rate and throttle"
_FOR_NOW = timedelta(hours=1)
"""How long an override lasts that does not say it."""


@router.get("/rate-limits", response=replies(ItemsReply), summary="The keys, and what is spent of them")
def limits(request: HttpRequest) -> HttpResponse:
    """List the keys."""
    access_of(request).need("read")
    found = page(request, RateLimitKey.objects.using(conf().database).only("name"), order=["name"], usual=20)
    names = [key.name for key in found.rows]
    stands = {status.name: status for status in rate_limit_status(names)} if names else {}
    items = [written(stands[name]) for name in names if name in stands]
    return answer({"items": items, "pagination": found.pagination})


@router.get("/rate-limits/{key}", response=replies(Limits), summary="One key")
def limit(request: HttpRequest, key: str) -> HttpResponse:
    """Show a key: its limits, what is spent of them, who waits."""
    access_of(request).need("read")
    return answer(_stands(key))


@router.put("/rate-limits/{key}", response=replies(Limits), summary="Override a key for a time")
def override(request: HttpRequest, key: str, limits: OverrideIn) -> HttpResponse:
    """Put other limits in force until `expires_at` (in an hour by default); those not named stay as they are."""
    access_of(request).need("admin")
    given = {name: value for name, value in plain(limits).items() if name in ("concurrency", "rate", "throttle")}
    if not given:
        raise invalid("concurrency", f"{_NAME_ONE}.")
    now = sql.now()
    until = read_moment("expires_at", limits.expires_at) or now + _FOR_NOW
    if until <= now:
        raise invalid("expires_at", "has passed; give a time to come.")
    oversized = api.override(key, until=until, by=access_of(request).actor(), **given)
    return answer({**_stands(key), "oversized_count": oversized})


@router.delete("/rate-limits/{key}", response=replies(Limits), summary="End the override of a key")
def end_override(request: HttpRequest, key: str) -> HttpResponse:
    """Put a key's own limits in force again."""
    access_of(request).need("admin")
    _stands(key)
    oversized = api.end_override(key, by=access_of(request).actor())
    return answer({**_stands(key), "oversized_count": oversized})


@router.put("/admin/queues/{name}/rate-limit", response=replies(Limits), summary="Limit a whole queue")
def limit_queue(request: HttpRequest, name: str, limits: LimitIn) -> HttpResponse:
    """Store those limits of a queue that are named: they hold for each of its jobs, on top of what the job spends."""
    access_of(request).need("admin")
    given = limits.named()
    if not given:
        raise invalid("concurrency", f"{_NAME_ONE}; null takes it away.")
    with sql.atomic():
        known_queues([queue_name(name)])
        key = store(name, given, by=access_of(request).actor())
    serve_limited([key])
    oversized = api.count_oversized(f"queue:{name}", {}, keeps_others=True)
    return answer({**_stands(f"queue:{name}"), "oversized_count": oversized})


def store(queue: str, limits: Mapping[str, Any], *, by: By) -> int:
    """Store some limits of a queue, and return its key's id: the caller dispenses it after the commit."""
    api.declare(f"queue:{queue}", {})
    return control.limit(f"queue:{queue}", limits, keeps_others=True, by=by)


def written(status: KeyStatus) -> dict[str, Any]:
    """Write a key as the spec does."""
    policy = status.policy
    concurrency = policy.concurrency
    free = None if concurrency is None else max(0, concurrency - status.in_flight)
    return without_nulls(
        {
            "key": status.name,
            "concurrency": None
            if concurrency is None
            else {"limit": concurrency, "active": status.in_flight, "available": free},
            "rate": _rate(policy.rate, current_count=status.used, window_resets_at=stamp(status.resets_at)),
            "throttle": _rate(policy.throttle, next_allowed_at=stamp(status.next_start_at)),
            "active": status.in_flight,
            "waiting_count": status.waiting,
            "waiting_since": stamp(status.waiting_since),
            "oversized_count": status.oversized,
            "paused": status.is_paused,
            "blocked_until": stamp(status.blocked_until),
            "override_expires_at": stamp(status.overridden_until),
        }
    )


def _rate(rate: Rate | None, **more: object) -> dict[str, Any] | None:
    return None if rate is None else {**rate.as_json(), **without_nulls(more)}


def _stands(name: str) -> dict[str, Any]:
    for status in rate_limit_status([name]):
        return written(status)
    raise missing("rate_limit", name)
