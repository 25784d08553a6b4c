"""Pages of a list: by cursor, by offset, or by page, as the spec's documents have it."""

import base64
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest

from dispatcher.web.ojs.wire import invalid, without_nulls

_MOST = 200
_DEEPEST = 100_000


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page of a list, and what the answer says of it."""

    rows: list[Any]
    pagination: dict[str, Any]


def page(request: HttpRequest, rows: QuerySet[Any], *, usual: int = 50) -> Page:
    """Return the page of these rows that a request asks for. Raises Problem."""
    limit = _number(request, "limit", _number(request, "per_page", usual, 1, _MOST), 1, _MOST)
    number = _number(request, "page", 1, 1, _DEEPEST)
    offset = _number(request, "offset", (number - 1) * limit, 0, _DEEPEST * _MOST)
    if cursor := request.GET.get("cursor"):
        offset = _offset(cursor)
    total = rows.count()
    found = list(rows[offset : offset + limit])
    has_more = offset + len(found) < total
    return Page(
        rows=found,
        pagination=without_nulls(
            {
                "total": total,
                "has_more": has_more,
                "next_cursor": _cursor(offset + limit) if has_more else None,
                "limit": limit,
                "offset": offset,
                "page": offset // limit + 1,
                "per_page": limit,
            }
        ),
    )


def _number(request: HttpRequest, name: str, usual: int, least: int, most: int) -> int:
    given = request.GET.get(name)
    if given is None or given == "":
        return usual
    if not given.isascii() or not given.isdigit() or len(given) > len(str(_DEEPEST * _MOST)) or int(given) < least:
        raise invalid(name, f"{given!r} must be a whole number from {least}.")
    return min(int(given), most)


def _cursor(offset: int) -> str:
    return base64.urlsafe_b64encode(f"o{offset}".encode()).decode().rstrip("=")


def _offset(cursor: str) -> int:
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
        offset = int(text.removeprefix("o"))
    except ValueError as error:
        raise invalid("cursor", "is none of this server; leave it out to begin anew.") from error
    return max(0, min(offset, _DEEPEST * _MOST))
