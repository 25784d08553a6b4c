"""The manifest and the health of the server (ojs-http-binding, sections 8 and 21)."""

import hashlib
import json
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from time import monotonic

from django.http import HttpRequest, HttpResponse
from django.utils.cache import get_conditional_response
from django.utils.http import quote_etag
from ninja import Status

from dispatcher import sql
from dispatcher.conf import conf
from dispatcher.ojs import event_log
from dispatcher.ojs.api import api
from dispatcher.ojs.job import MAX_META_BYTES
from dispatcher.ojs.responses import Answer, Reply, Routes
from dispatcher.ojs.wire import HINTS, VERSION

router = Routes(tags=["system"])
root = Routes()
"""What is beside the versions."""

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
_PAYLOAD_LIMITS = {"max_queue_name_bytes": 128, "max_job_type_bytes": 255, "supported_compression": []}
EVENT_LOG_EXTENSIONS = ["rate-limiting", "backpressure"]
"""Extensions whose events need the event log."""


@root.get("/manifest", include_in_schema=False)
def manifest(request: HttpRequest) -> Answer:
    """Return the capabilities of this server."""
    base = f"{request.path.removesuffix('/manifest')}/v1"
    limits = {"max_envelope_bytes": conf().max_payload_bytes, "max_meta_bytes": MAX_META_BYTES}
    return {
        "specversion": VERSION,
        "ojs_version": VERSION,
        "implementation": {"name": "django-callqueue", "version": _version(), "language": "python"},
        "conformance_level": 4,
        "protocols": ["http"],
        "backend": "postgres",
        "capabilities": CAPABILITIES,
        "extensions": [*EXTENSIONS, *(EVENT_LOG_EXTENSIONS if event_log.is_kept() else [])],
        "payload_limits": {**limits, **_PAYLOAD_LIMITS},
        "rate_limiting": {"window": "sliding", "max_overcount_percent": 1},
        "endpoints": {"base_url": base, "manifest": request.path, "health": f"{base}/health"},
    }


@router.get("/openapi.json", include_in_schema=False)
def openapi(request: HttpRequest) -> HttpResponse:
    """Publish the schema."""
    schema, tag = _schema(request.path.removesuffix("v1/openapi.json"))
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
def errors(request: HttpRequest) -> Answer:
    """List the error codes, each with a hint: the target of an error's `doc_url`."""
    return {"errors": [{"code": code, "hint": hint} for code, hint in sorted(HINTS.items())]}


@router.get("/health", response={200: Reply, 503: Reply})
def health(request: HttpRequest) -> Status[Answer]:
    """Show the health of the server and its database, which is asked for the time."""
    began = monotonic()
    known = {"version": VERSION, "uptime_seconds": round(began - _started)}
    try:
        sql.now()
    except sql.DATABASE_ERRORS as error:
        backend: Answer = {"type": "postgres", "status": "disconnected", "error": type(error).__name__}
        return Status(503, {"status": "degraded", **known, "backend": backend})
    backend = {"type": "postgres", "status": "connected", "latency_ms": round((monotonic() - began) * 1000)}
    return Status(200, {"status": "ok", **known, "backend": backend})
