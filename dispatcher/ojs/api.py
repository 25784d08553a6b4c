"""The HTTP API: its schema, headers and errors (ojs-http-binding, sections 6.5, 16, 19 and 20)."""

import logging
import re
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Final

import uuid_utils.compat as uuid7
from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.http.response import HttpResponseBase
from django.urls import URLPattern
from django.views.decorators.csrf import csrf_exempt
from ninja import NinjaAPI
from ninja.errors import HttpError, ValidationError
from ninja.parser import Parser
from ninja.renderers import JSONRenderer

from dispatcher import sql
from dispatcher.conf import conf
from dispatcher.errors import CallTooLarge, FieldInvalid, KeyNotFound, RowLocked, UnknownKey
from dispatcher.ojs import event_log
from dispatcher.ojs.auth import SAFE, Access, authenticate
from dispatcher.ojs.errors import DuplicateCall, QueueFull
from dispatcher.ojs.models import EventLogEntry
from dispatcher.ojs.wire import MEDIA_TYPE, VERSION, Problem, invalid, json_text, missing, read_json, without_nulls
from dispatcher.sql import faults

logger = logging.getLogger(__name__)

_REQUEST_ID: Final = re.compile(r"[\x21-\x7e]{1,200}")
_EXPOSED: Final = "X-Request-Id, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, OJS-Version, Retry-After"
_SOON: Final = {"Retry-After": "1"}


class _Parser(Parser):
    def parse_body(self, request: HttpRequest) -> Any:
        return read_json(request)


class _Renderer(JSONRenderer):
    media_type = MEDIA_TYPE

    def render(self, request: HttpRequest, data: Any, *, response_status: int) -> str:  # noqa: ARG002
        return json_text(data)


class _Api(NinjaAPI):
    def get_content_type(self) -> str:
        return MEDIA_TYPE


api = _Api(
    title="Open Job Spec",
    version=VERSION,
    description="Jobs for workers in any language, under the same limits as Celery's calls.",
    urls_namespace="ojs",
    docs_url=None,
    openapi_url=None,
    parser=_Parser(),
    renderer=_Renderer(),
    openapi_extra={
        "components": {"securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}}},
        "security": [{"bearer": []}, {}],
    },
)


def access_of(request: HttpRequest) -> Access:
    """Return the access of an authenticated request."""
    return request.ojs_access  # type: ignore[attr-defined, no-any-return]


def _needs(verb: str) -> Callable[[HttpRequest], bool]:
    def is_allowed(request: HttpRequest) -> bool:
        access_of(request).require(verb)
        return True

    return is_allowed


READ: Final = _needs("read")
ADMIN: Final = _needs("admin")
"""The `auth` of endpoints that need this scope on all queues; those of one queue or job check theirs by themselves."""


def with_ojs_headers(pattern: URLPattern) -> URLPattern:
    """Authenticate the requests of a URL pattern, and add the spec's headers to each response."""
    pattern.callback = _with_ojs_headers(pattern.callback)
    return pattern


def not_found(request: HttpRequest) -> HttpResponse:
    """Respond to an unknown path."""
    raise missing("path", request.path)


def _with_ojs_headers(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    # Each statement commits by itself: what is published or returned to a worker must be visible to other processes.
    @transaction.non_atomic_requests(using=conf().database)
    @csrf_exempt
    @wraps(view)
    def answered(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        given = request.headers.get("X-Request-Id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else f"req_{uuid7.uuid7()}"
        request.ojs_request_id = request_id  # type: ignore[attr-defined]
        headers: dict[str, str] = {}
        is_head = request.method == "HEAD"
        try:
            if request.method == "OPTIONS":
                response: HttpResponseBase = HttpResponse(status=204, content_type=MEDIA_TYPE)
            else:
                _check(request)
                request.ojs_access = authenticate(request)  # type: ignore[attr-defined]
                headers = access_of(request).headers
                if request.method not in SAFE:
                    access_of(request).require_any()
                    _read_chunks(request)
                request.method = "GET" if is_head else request.method
                response = view(request, *args, **kwargs)
            if isinstance(response, HttpResponseNotAllowed):
                allowed = response.headers["Allow"]
                message = f"{request.method} is not allowed here, only {allowed}."
                raise Problem(405, "invalid_request", message, headers={"Allow": allowed})  # noqa: TRY301
        except Exception as error:  # noqa: BLE001 -- who asks is looked up before ninja's handlers are there
            response = api.on_exception(request, error)
        for name, value in {"OJS-Version": VERSION, "X-Request-Id": request_id, **headers, **_cors(request)}.items():
            response.headers.setdefault(name, value)
        return _head_of(response) if is_head else response

    return answered


def _read_chunks(request: HttpRequest) -> None:
    """Read a body that comes in chunks, without its length, from a server that shows where it ends (PEP 3333)."""
    is_chunked = "chunked" in request.headers.get("Transfer-Encoding", "").lower()
    if not is_chunked or request.META.get("CONTENT_LENGTH") or "wsgi.input" not in request.META:
        return
    if not request.META.get("wsgi.input_terminated"):
        message = "This server does not read bodies in chunks: send the body with its Content-Length."
        raise Problem(411, "invalid_request", message)
    most = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    body = request.META["wsgi.input"].read(-1 if most is None else most + 1)
    if most is not None and len(body) > most:
        raise _too_large(f"The body is larger than {most} bytes.")  # noqa: TRY003 -- the message of a response
    request._body = body  # noqa: SLF001 -- where Django keeps a body that was read


def _head_of(response: HttpResponseBase) -> HttpResponseBase:
    """Return a response to GET without its body; a stream is not begun."""
    headers = dict(response.headers)
    if isinstance(response, HttpResponse):
        headers["Content-Length"] = str(len(response.content))
    response.close()
    return HttpResponse(status=response.status_code, headers=headers)


def _check(request: HttpRequest) -> None:
    wanted = request.headers.get("OJS-Version", VERSION)
    if wanted.split(".")[0] != VERSION.split(".", maxsplit=1)[0]:
        raise Problem(422, "unsupported", f"OJS-Version {wanted!r} is not supported, only {VERSION}.")
    if request.method not in SAFE and "Idempotency-Key" in request.headers:
        message = (
            "is not supported. Send the job with an `id` of your own: a repeated request then gets 409, duplicate."
        )
        raise invalid("Idempotency-Key", message)
    if "\0" in request.path or "%00" in request.META.get("QUERY_STRING", ""):
        raise invalid("path", "must not contain NUL.")


def _cors(request: HttpRequest) -> dict[str, str]:
    origin = request.headers.get("Origin")
    if origin is None or origin not in conf().http_origins:
        return {}
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Allow-Methods": "GET, POST, PUT, PATCH, DELETE, OPTIONS",
        "Access-Control-Allow-Headers": "Content-Type, Accept, Authorization, X-Request-Id, OJS-Version",
        "Access-Control-Expose-Headers": _EXPOSED,
        "Access-Control-Max-Age": "86400",
        "Vary": "Origin",
    }


def _answer(request: HttpRequest, error: Exception) -> HttpResponse:
    prefix = request.path.partition("/ojs/")[0]
    return _problem_of(request, error).response(str(getattr(request, "ojs_request_id", "")), f"{prefix}/ojs/v1/errors")


# Those that ninja has handlers of its own for, and all others.
for _kind in (ValidationError, HttpError, Exception):
    api.add_exception_handler(_kind, _answer)  # type: ignore[arg-type]  # ninja's type names classes, too.


def _problem_of(request: HttpRequest, error: Exception) -> Problem:  # noqa: PLR0911 -- one case a kind of error
    """Return the error response for an exception; an unexpected one is logged."""
    match error:
        case Problem():
            return error
        case ValidationError():
            return _not_valid(request, error)
        case HttpError():
            # An error of the parser.
            cause = error.__cause__ if isinstance(error.__cause__, Problem) else error.__context__
            return cause if isinstance(cause, Problem) else Problem(error.status_code, "invalid_request", str(error))
        case FieldInvalid():
            status = 413 if isinstance(error, CallTooLarge) else 400
            # Which keys have names like it is not for every token.
            shown = UnknownKey(error.names) if isinstance(error, UnknownKey) else error
            return Problem(status, "invalid_request", str(shown), details={"field": error.field})
        case DuplicateCall():
            details = {"existing_job_id": error.call, "existing_job_state": error.state, "unique_key": error.unique_key}
            return Problem(409, "duplicate", str(error), details=without_nulls(details))
        case QueueFull():
            return _queue_full(error)
        case KeyNotFound():
            return missing("rate_limit", error.name)
        case RequestDataTooBig():
            return _too_large(str(error))
        case _ if isinstance(error, (RowLocked, *sql.DATABASE_ERRORS)) and sql.is_unavailable(error):
            return _unavailable(error)
        case _:
            logger.error("unexpected error in %s %s", request.method, request.path, exc_info=error)
            return Problem(500, "backend_error", "Internal server error.", is_retryable=True)


def _too_large(message: str) -> Problem:
    return Problem(413, "envelope_too_large", f"{message} Raise DATA_UPLOAD_MAX_MEMORY_SIZE for larger requests.")


def _unavailable(error: Exception) -> Problem:
    """Return the response while the database is unavailable, or lacks the functions of this code."""
    if sql.is_locked(error):
        message = "Another transaction has locked what this request changes; nothing was changed."
        message = str(error) if isinstance(error, RowLocked) else message
        return Problem(503, "backend_error", message, is_retryable=True, headers=_SOON)
    if not faults.report(error):
        logger.warning("the database is unavailable: %s", error)
    return Problem(503, "backend_error", "The database is unavailable.", is_retryable=True, headers=_SOON)


def _not_valid(request: HttpRequest, error: ValidationError) -> Problem:
    if not request.body and request.method in ("POST", "PUT", "PATCH"):
        return Problem(400, "invalid_payload", "The body is empty; it must be a JSON object.")
    first = error.errors[0]
    message = str(first.get("msg", "is not valid")).removeprefix("Value error, ")
    is_retry = "retry" in first["loc"] and first["type"] != "extra_forbidden"
    status, kind = (422, "validation_error") if is_retry else (400, None)
    problem = invalid(_path(first["loc"]), message, status=status, kind=kind)
    problem.details["validation_errors"] = [
        {"path": f"$.{_path(each['loc'])}", "message": each.get("msg", "")} for each in error.errors[:20]
    ]
    return problem


def _path(loc: Sequence[object]) -> str:
    """Return the path of the invalid field, without the names of Python parameters."""
    return ".".join(str(part) for part in loc[2:] or loc[1:]) or "body"


def _queue_full(error: QueueFull) -> Problem:
    """Return the response to a full queue, and note each of its rejected job types in the event log."""
    pressure = {"depth": error.depth, "bound": error.bound}
    rejected = [{**pressure, "job_type": task} for task in dict.fromkeys(error.tasks)]
    event_log.note([EventLogEntry(kind="backpressure.rejected", queue=error.queue, data=each) for each in rejected])
    headers = {"X-OJS-Queue-Depth": str(error.depth), "X-OJS-Queue-Bound": str(error.bound), **_SOON}
    more = {"queue": error.queue, **pressure, "strategy": error.strategy}
    return Problem(429, "QUEUE_FULL", str(error), is_retryable=True, more=more, headers=headers)
