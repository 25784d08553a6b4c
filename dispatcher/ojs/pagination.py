"""Pages of a list: a cursor holds the last row's place in the order of an index, so no page misses a row.

A page reads a bounded number of rows. Where a filter has no index of its own, one page looks through `MANY` rows in the
list's order: it may hold fewer rows than asked for, or none, and `next_cursor` goes on behind those.
"""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.db.models import Field, Model, Q, QuerySet
from django.http import HttpRequest
from django.utils.timezone import is_naive

from dispatcher.ojs.wire import invalid, without_nulls

MANY: Final = 10_000
"""How far rows are counted, how far back numbered pages go, and how many rows a page looks through."""
_MOST: Final = 200
_DIGITS: Final = 9


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page of a list, and what the answer says of it."""

    rows: list[Any]
    pagination: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Window:
    """The rows among which a page is looked for, and the place of the last of them; None: they are all that is left."""

    rows: QuerySet[Any]
    last: tuple[Any, ...] | None


def page(
    request: HttpRequest,
    rows: QuerySet[Any],
    *,
    order: Sequence[str],
    among: QuerySet[Any] | None = None,
    usual: int = 50,
) -> Page:
    """Return the page of these rows that a request asks for. Raises Problem.

    order: fields that name each row, all ascending or all descending ("-"); an index has them.
    among: rows with these and others in them, which that index reads; None: `rows` themselves.
    """
    limit = _number(request, "limit", _number(request, "per_page", usual, _MOST), _MOST)
    first = window(rows, order, among)
    total = first.rows[: MANY + 1].count()
    told: dict[str, Any] = {
        "total": min(total, MANY),
        "total_is_exact": total <= MANY and first.last is None,
        "limit": limit,
    }
    if cursor := request.GET.get("cursor"):
        shown = window(rows, order, among, after=read_cursor(cursor, rows.model, order))
        offset = 0
    else:
        shown, offset = first, _offset(request, limit)
        told |= {"offset": offset, "page": offset // limit + 1}
    found = list(shown.rows[offset : offset + limit + 1])
    last = place(found[limit - 1], order) if len(found) > limit else shown.last
    next_cursor = None if last is None else write_cursor(last, order)
    told |= {"has_more": last is not None, "next_cursor": next_cursor, "per_page": limit}
    return Page(rows=found[:limit], pagination=without_nulls(told))


def window(
    rows: QuerySet[Any],
    order: Sequence[str],
    among: QuerySet[Any] | None,
    *,
    after: tuple[Any, ...] | None = None,
) -> Window:
    """Return those of the rows, in order, that a page may look through behind a place."""
    ordered = rows.order_by(*order)
    if after is not None:
        ordered = ordered.filter(_beside(order, after, is_behind=True))
    if among is None:
        return Window(rows=ordered, last=None)
    all_left = among if after is None else among.filter(_beside(order, after, is_behind=True))
    names = [name.removeprefix("-") for name in order]
    last = all_left.order_by(*order).values_list(*names)[MANY - 1 : MANY].first()
    return Window(rows=ordered if last is None else ordered.filter(_beside(order, last, is_behind=False)), last=last)


def place(row: Model, order: Sequence[str]) -> tuple[Any, ...]:
    """Return the place of a row in an order."""
    return tuple(getattr(row, name.removeprefix("-")) for name in order)


def _beside(order: Sequence[str], place: Sequence[Any], *, is_behind: bool) -> Q:
    """Return the condition that a row comes behind a place; or else that it comes before it, or is there."""
    names = [name.removeprefix("-") for name in order]
    operator = "gt" if is_behind != order[0].startswith("-") else "lt"
    found = Q(**{f"{names[-1]}__{operator}{'' if is_behind else 'e'}": place[-1]})
    for name, value in zip(reversed(names[:-1]), reversed(place[:-1]), strict=True):
        # The first condition is the one that an index reads by.
        found = Q(**{f"{name}__{operator}e": value}) & (Q(**{f"{name}__{operator}": value}) | found)
    return found


def write_cursor(place: Sequence[Any], order: Sequence[str]) -> str:
    """Return an opaque text of a place in an order."""
    values = [value.isoformat() if isinstance(value, datetime) else str(value) for value in place]
    return base64.urlsafe_b64encode(json.dumps([*order, *values]).encode()).decode().rstrip("=")


def read_cursor(cursor: str, model: type[Model], order: Sequence[str]) -> tuple[Any, ...]:
    """Return the place that a cursor holds. Raises Problem if it is none of a list in this order."""
    try:
        given = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        if given[: len(order)] != [*order]:
            raise ValueError  # noqa: TRY301 -- one remedy for all that is no cursor
        return tuple(_value(model, name, text) for name, text in zip(order, given[len(order) :], strict=True))
    except (ValueError, TypeError, KeyError, RecursionError, ValidationError) as error:
        raise invalid("cursor", "is none of this list; leave it out to begin with the first page.") from error


def _value(model: type[Model], name: str, text: object) -> Any:
    if not isinstance(text, str) or "\0" in text.encode().decode():
        raise ValueError
    field: Field[Any, Any] = model._meta.get_field(name.removeprefix("-"))  # type: ignore[assignment]
    value = field.to_python(text)
    if isinstance(value, datetime) and is_naive(value):
        raise ValueError
    return value


def _offset(request: HttpRequest, limit: int) -> int:
    number = _number(request, "page", 1, None)
    offset = _number(request, "offset", (number - 1) * limit, None, least=0)
    if offset > MANY:
        field = "offset" if request.GET.get("offset") else "page"
        raise invalid(field, f"leads further than {MANY:,} rows; go on with the cursor of the page before.")
    return offset


def _number(request: HttpRequest, name: str, usual: int, most: int | None, *, least: int = 1) -> int:
    given = request.GET.get(name)
    if given is None or given == "":
        return usual
    if not given.isascii() or not given.isdigit() or len(given) > _DIGITS or int(given) < least:
        raise invalid(name, f"{given!r} must be a whole number from {least}.")
    return int(given) if most is None else min(int(given), most)
