"""The wire format: responses, problems, times and ids (ojs-http-binding, ojs-json-format)."""

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from itertools import accumulate
from math import isfinite
from typing import Any, Final, TypeVar
from uuid import UUID

import arrow
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse

from dispatcher import sql, validate
from dispatcher.limits.durations import parse_duration
from dispatcher.reports import words

Row = TypeVar("Row", bound=Model)

MEDIA_TYPE: Final = "application/openjobspec+json"
ACCEPTED: Final = ("application/openjobspec+json", "application/json")
VERSION: Final = "1.0"
UUID7: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")

ANSWER_BYTES: Final = 4 * 1_048_576
"""How much an answer with several jobs, events or results holds at the most."""

format_time: Final = words.format_time

HINTS: Final = {
    "invalid_payload": "Send a JSON object, with Content-Type: application/openjobspec+json.",
    "invalid_request": "Correct the field that the message names, and send the request again.",
    "not_found": "Check the id or the name; an ended job is deleted when its retention is over.",
    "conflict": "Check the job's state: it may have ended, or its lease may have expired.",
    "duplicate": "The details name the existing job, if these credentials may send to its queue.",
    "unauthenticated": "Send Authorization: Bearer with a token made by manage.py dispatcher_token.",
    "permission_denied": "Use a token whose scopes allow this.",
    "rate_limited": "Retry after the Retry-After header value, or raise the limits of the token's key.",
    "QUEUE_FULL": "Retry after the Retry-After header value, or raise the queue's max_depth.",
    "backend_error": "Retry later; nothing was changed.",
    "unsupported": "See /ojs/manifest for the capabilities of this server.",
    "envelope_too_large": "Send less, or raise the setting that the message names.",
    "invalid_workflow": "Correct the step that the message names; no job of the workflow was sent.",
}
"""What to do about each error code."""


@dataclass(eq=False)
class Problem(Exception):
    """An error response, raised: its status, and the fields of the error object; `more` are additional ones."""

    status: int
    code: str
    message: str
    _: KW_ONLY
    kind: str | None = None
    is_retryable: bool = False
    details: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message

    def response(self, request_id: str, errors_url: str) -> HttpResponse:
        """Return the error object; errors_url: where the codes are documented (ojs-errors, section 3.2)."""
        docs_url = f"{errors_url}#{self.code}"
        error: dict[str, Any] = {
            "code": self.code,
            "message": self.message,
            "retryable": self.is_retryable,
            "type": self.kind or self.code.lower(),
            "details": self.details,
            "request_id": request_id,
            "hint": HINTS[self.code],
            # Both spellings: of ojs-errors and of ojs-http-binding.
            "doc_url": docs_url,
            "docs_url": docs_url,
            **self.more,
        }
        text = json_text({"error": error})
        return HttpResponse(text, status=self.status, content_type=MEDIA_TYPE, headers=self.headers)


def invalid(field: str, problem: str, *, status: int = 400, kind: str | None = None) -> Problem:
    """Return the problem of an invalid field."""
    details = {"field": field}
    return Problem(status, "invalid_request", f"{field}: {problem}", kind=kind, details=details)


def missing(what: str, name: object) -> Problem:
    """Return the problem of a resource that does not exist."""
    details = {"resource_type": what, "resource_id": str(name)}
    return Problem(404, "not_found", f"{what.replace('_', ' ').capitalize()} {str(name)!r} not found.", details=details)


def the_one(rows: QuerySet[Row], what: str, name: object) -> Row:
    """Return the only row. Raises Problem if there is none."""
    if (row := rows.first()) is None:
        raise missing(what, name)
    return row


def conflict(message: str, **details: object) -> Problem:
    """Return the problem of a resource in the wrong state."""
    return Problem(409, "conflict", message, details=details)


def json_text(body: object) -> str:
    """Return the JSON of a body; times are in the spec's format."""
    return json.dumps(body, default=_plain, ensure_ascii=False, separators=(",", ":"))


def is_admins(request: HttpRequest) -> bool:
    """Return whether a request is to a path of the admin API, which has items and bare jobs (ojs-admin-api)."""
    return "/ojs/v1/admin/" in request.path


def job_body(request: HttpRequest, job: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a response with one job."""
    return job if is_admins(request) else {"job": job}


def fitting(sizes: Iterable[int | None], most: int = ANSWER_BYTES) -> int:
    """Return how many of these, in order, have room in so many bytes: one at least, if there are any."""
    held = [*accumulate(size or 0 for size in sizes)]
    return max(min(1, len(held)), bisect_right(held, most))


def without_nulls(body: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out null fields, as the spec does."""
    return {name: value for name, value in body.items() if value is not None}


def read_json(request: HttpRequest) -> dict[str, Any]:
    """Return the body of a request, a JSON object. Raises Problem."""
    kind = request.headers.get("Content-Type", "").split(";")[0].strip().lower()
    if kind not in ACCEPTED and request.body:
        raise Problem(400, "invalid_request", f"Content-Type: {kind or 'none'} is not {MEDIA_TYPE}.")
    try:
        body = json.loads(request.body.decode(), parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise Problem(400, "invalid_payload", f"The body is not JSON in UTF-8: {error}.") from error
    if not isinstance(body, dict):
        raise Problem(400, "invalid_payload", "The body must be a JSON object.")
    if b"\\u" in request.body and not _is_storable(body):
        raise Problem(400, "invalid_request", "A string contains NUL or a lone surrogate, which can't be stored.")
    return body


_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""An escaped NUL, but not an escaped backslash before u0000."""


def _is_storable(body: object) -> bool:
    try:
        return not _NUL.search(json.dumps(body, ensure_ascii=False).encode())
    except UnicodeEncodeError:
        return False


def parse_time(field: str, value: object) -> datetime | None:
    """Return a time: RFC 3339 with a zone, or relative, such as "+PT5S". Raises Problem."""
    if value is None:
        return None
    wait = parse_duration(value[1:], field) if isinstance(value, str) and value.startswith("+P") else None
    try:
        if wait is not None:
            return validate.moment(field, sql.now() + wait)
        if not isinstance(value, str) or not _RFC3339.fullmatch(value):
            raise ValueError  # noqa: TRY301 -- one remedy for all that is no time
        return validate.moment(field, arrow.get(value).datetime)
    except (ValueError, arrow.ParserError, OverflowError) as error:
        problem = f'{value!r} is not a valid time with a zone (RFC 3339), such as "2030-01-01T12:00:00Z".'
        raise invalid(field, problem) from error


_RFC3339: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")


def parse_id(what: str, value: str) -> UUID:
    """Return the id in a path or a body. Raises Problem: an invalid id is of no resource."""
    try:
        return UUID(value)
    except ValueError as error:
        raise missing(what, value) from error


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise Problem(400, "invalid_request", f"The number {text[:40]} is too large to be stored; send it as a string.")
    return number


def _refuse(name: str) -> None:
    message = f"{name} is not JSON"
    raise ValueError(message)


def _plain(value: object) -> str | None:
    return format_time(value) if isinstance(value, datetime) else str(value)
