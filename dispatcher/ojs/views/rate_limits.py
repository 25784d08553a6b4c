"""Rate limits: show, and override for a time (ojs-rate-limiting, section 10)."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Query

from dispatcher import api, engine, sql
from dispatcher.history import By
from dispatcher.lifecycle import control
from dispatcher.models import RateLimitKey
from dispatcher.ojs.api import ADMIN, READ, access_of
from dispatcher.ojs.pagination import paginate
from dispatcher.ojs.queries import PageIn
from dispatcher.ojs.queues import create_queues, queue_name
from dispatcher.ojs.requests import LimitIn, OverrideIn
from dispatcher.ojs.responses import ItemsReply, RateLimitReply, Routes, replies
from dispatcher.ojs.wire import invalid, json_response, missing, parse_time, without_nulls
from dispatcher.reports import KeyStatus, rate_limit_status

router = Routes(tags=["rate limits"])

_NAME_ONE = "name at least one of concurrency, per_worker, rate and throttle"
_FOR_NOW = timedelta(hours=1)
"""The default duration of an override."""


@router.get("/rate-limits", response=replies(ItemsReply), auth=READ)
def limits(request: HttpRequest, page: Query[PageIn]) -> HttpResponse:
    """List the keys."""
    found = paginate(page, RateLimitKey.objects.only("name"), order=["name"], default=20)
    names = [key.name for key in found.rows]
    statuses = {status.name: status for status in rate_limit_status(names)} if names else {}
    items = [render_key(statuses[name]) for name in names if name in statuses]
    return json_response({"items": items, "pagination": found.pagination})


@router.get("/rate-limits/{key}", response=replies(RateLimitReply), auth=READ)
def limit(request: HttpRequest, key: str) -> HttpResponse:
    """Show a key: its limits, their use, and the number of waiting jobs."""
    return json_response(_find_key(key))


@router.put("/rate-limits/{key}", response=replies(RateLimitReply), auth=ADMIN)
def override(request: HttpRequest, key: str, limits: OverrideIn) -> HttpResponse:
    """Override limits until `expires_at` (by default one hour); absent ones do not change."""
    given = without_nulls(limits.named())
    if not given:
        raise invalid("concurrency", f"{_NAME_ONE}.")
    now = sql.now()
    until = parse_time("expires_at", limits.expires_at) or now + _FOR_NOW
    if until <= now:
        raise invalid("expires_at", "has passed; give a time in the future.")
    oversized = api.override(key, until=until, by=access_of(request).actor(), **given)
    return json_response({**_find_key(key), "oversized_count": oversized})


@router.delete("/rate-limits/{key}", response=replies(RateLimitReply), auth=ADMIN)
def end_override(request: HttpRequest, key: str) -> HttpResponse:
    """Put a key's own limits in force again."""
    _find_key(key)
    oversized = api.end_override(key, by=access_of(request).actor())
    return json_response({**_find_key(key), "oversized_count": oversized})


@router.put("/admin/queues/{name}/rate-limit", response=replies(RateLimitReply), auth=ADMIN)
def limit_queue(request: HttpRequest, name: str, limits: LimitIn) -> HttpResponse:
    """Store the given limits of a queue; they apply to each of its jobs, in addition to the job's own keys."""
    given = limits.named()
    if not given:
        raise invalid("concurrency", f"{_NAME_ONE}; null removes a limit.")
    with sql.atomic():
        create_queues([queue_name(name)])
        store(name, given, by=access_of(request).actor())
    engine.dispense_briefly()
    oversized = api.count_oversized(f"queue:{name}", {}, keeps_others=True)
    return json_response({**_find_key(f"queue:{name}"), "oversized_count": oversized})


def store(queue: str, limits: Mapping[str, Any], *, by: By) -> None:
    """Store some limits of a queue; the caller dispenses after the commit."""
    api.declare(f"queue:{queue}", {})
    control.limit(f"queue:{queue}", limits, keeps_others=True, by=by)


def render_key(status: KeyStatus) -> dict[str, Any]:
    """Return a key as `rate_limit_status --json` does, without nulls."""
    fields = status.as_json().items()
    return without_nulls({name: without_nulls(value) if isinstance(value, dict) else value for name, value in fields})


def _find_key(name: str) -> dict[str, Any]:
    for status in rate_limit_status([name]):
        return render_key(status)
    raise missing("rate_limit", name)
