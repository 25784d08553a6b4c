"""The manifest and the health of the server (ojs-http-binding, sections 8 and 21)."""

import hashlib
import json
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from time import monotonic
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.utils.cache import get_conditional_response
from django.utils.http import quote_etag

from dispatcher import sql
from dispatcher.conf import conf
from dispatcher.ojs import event_log
from dispatcher.ojs.api import api
from dispatcher.ojs.job import MAX_META_BYTES
from dispatcher.ojs.responses import Reply, Routes
from dispatcher.ojs.wire import HINTS, VERSION, json_response

router = Routes(tags=["system"])

_started = monotonic()

CAPABILITIES = {
    "batch_enqueue": True,
    "cron_jobs": True,
    "dead_letter": True,
    "delayed_jobs": True,
    "job_ttl": True,
    "priority_queues": True,
    "rate_limiting": True,
    "schema_validation": False,
    "unique_jobs": {"strength": "strong", "mechanism": "advisory lock in the transaction of the insert"},
    "workflows": True,
    "pause_resume": True,
}
EXTENSIONS = ["dead-letter", "progress", "admin-api", "events", "webhooks", "fair-scheduling", "graceful-shutdown"]
EVENT_LOG_EXTENSIONS = ["rate-limiting", "backpressure"]
"""Extensions whose events need the event log."""


def manifest(request: HttpRequest) -> HttpResponse:
    """Return the capabilities of this server."""
    if request.method not in ("GET", "HEAD"):
        return HttpResponseNotAllowed(["GET", "HEAD"])
    base = f"{request.path.removesuffix('/manifest')}/v1"
    payload_limits: dict[str, Any] = {
        "max_envelope_bytes": conf().max_payload_bytes,
        "max_meta_bytes": MAX_META_BYTES,
        "max_queue_name_bytes": 128,
        "max_job_type_bytes": 255,
        "supported_compression": [],
    }
    return json_response(
        {
            "specversion": VERSION,
            "ojs_version": VERSION,
            "implementation": {"name": "django-callqueue", "version": _version(), "language": "python"},
            "conformance_level": 4,
            "protocols": ["http"],
            "backend": "postgres",
            "capabilities": CAPABILITIES,
            "extensions": [*EXTENSIONS, *(EVENT_LOG_EXTENSIONS if event_log.is_kept() else [])],
            "payload_limits": payload_limits,
            "rate_limiting": {"window": "sliding", "max_overcount_percent": 1},
            "endpoints": {"base_url": base, "manifest": request.path, "health": f"{base}/health"},
        }
    )


def openapi(request: HttpRequest) -> HttpResponse:
    """Publish the schema."""
    if request.method not in ("GET", "HEAD"):
        return HttpResponseNotAllowed(["GET", "HEAD"])
    schema, tag = _schema(request.path.removesuffix("openapi.json"))
    published = HttpResponse(schema, content_type="application/json", headers={"ETag": tag})
    return get_conditional_response(request, etag=tag, response=published) or published


@lru_cache(maxsize=4)
def _schema(prefix: str) -> tuple[bytes, str]:
    """Return the schema under a path prefix, and its ETag; building it takes half a second."""
    schema = json.dumps(api.get_openapi_schema(path_prefix=prefix)).encode()
    return schema, quote_etag(hashlib.sha256(schema).hexdigest())


def _version() -> str:
    try:
        return version("django-callqueue")
    except PackageNotFoundError:
        return "0"


@router.get("/errors")
def errors(request: HttpRequest) -> HttpResponse:
    """List the error codes, each with a hint: the target of an error's `doc_url`."""
    return json_response({"errors": [{"code": code, "hint": hint} for code, hint in sorted(HINTS.items())]})


@router.get("/health", response={200: Reply, 503: Reply})
def health(request: HttpRequest) -> HttpResponse:
    """Show the health of the server and its database, which is asked for the time."""
    began = monotonic()
    known = {"version": VERSION, "uptime_seconds": round(began - _started)}
    try:
        sql.now()
    except sql.DATABASE_ERRORS as error:
        backend = {"type": "postgres", "status": "disconnected", "error": type(error).__name__}
        return json_response({"status": "degraded", **known, "backend": backend}, 503)
    latency = round((monotonic() - began) * 1000)
    connected = {"type": "postgres", "status": "connected", "latency_ms": latency}
    return json_response({"status": "ok", **known, "backend": connected})
