"""Pagination: a cursor holds the last row's values in the order of an index, so that no page misses a row.

A page reads a bounded number of rows. Where a filter has no index of its own, a page scans `ROW_LIMIT` rows in the
list's order: it may have fewer rows than `limit`, or none, and `next_cursor` continues after the scanned rows.
"""

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final

from django.core.exceptions import ValidationError
from django.db.models import Func, IntegerField, Model, Q, QuerySet, TextField
from django.db.models.functions import Cast
from pydantic import BaseModel, Field, field_validator

from dispatcher import validate
from dispatcher.ojs import fields, wire
from dispatcher.ojs.wire import ANSWER_BYTES, invalid, without_nulls

ROW_LIMIT: Final = 10_000
"""The limit of counts, of offsets, and of the rows that a page scans."""
_MOST: Final = 200


class QueryString(BaseModel):
    """What a list is asked for; an empty text is none."""

    @field_validator("*", mode="before")
    @classmethod
    def _is_given(cls, value: object) -> object:
        return None if value == "" else value


class PageIn(QueryString):
    """Which page: after a `cursor`, or by number or offset; of at most 200 rows."""

    limit: fields.Whole | None = None
    per_page: fields.Whole | None = None
    page: fields.Whole | None = None
    offset: Annotated[int, Field(ge=0)] | None = None
    cursor: str | None = None


@dataclass(frozen=True, kw_only=True)
class Page:
    """The rows of a page, and the pagination object of its response."""

    rows: list[Any]
    pagination: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Window:
    """The rows that a page scans, and the order values of the last of them; None: no rows are left after them."""

    rows: QuerySet[Any]
    last: tuple[Any, ...] | None


def paginate(
    page: PageIn,
    rows: QuerySet[Any],
    *,
    order: Sequence[str],
    among: QuerySet[Any] | None = None,
    default: int = 50,
    fitting: Callable[[Sequence[Any]], int] = len,
    large: str = "",
    times: int = 1,
) -> Page:
    """Return the requested page of these rows. Raises Problem.

    order: fields that identify each row, all ascending or all descending ("-"); an index has them.
    among: the rows that this index scans, a superset of `rows`; None: `rows` themselves.
    fitting: how many of the rows, in order, the answer has room for.
    large: in place of that, the JSON field that the answer shows so many times.
    """
    rows = rows.annotate(bytes=json_bytes(large)) if large else rows
    limit = min(page.limit or page.per_page or default, _MOST)
    first = window(rows, order, among)
    total = first.rows[: ROW_LIMIT + 1].count()
    summary: dict[str, Any] = {
        "total": min(total, ROW_LIMIT),
        "total_is_exact": total <= ROW_LIMIT and first.last is None,
        "limit": limit,
    }
    if page.cursor:
        shown = window(rows, order, among, after=read_cursor(page.cursor, rows.model, order))
        offset = 0
    else:
        shown, offset = first, _offset(page, limit)
        summary |= {"offset": offset, "page": offset // limit + 1}
    found = list(shown.rows[offset : offset + limit + 1])
    texts = (row.bytes for row in found[:limit]) if large else ()
    count = wire.fitting(texts, ANSWER_BYTES // times) if large else fitting(found[:limit])
    names = [name.removeprefix("-") for name in order]
    last = tuple(getattr(found[count - 1], name) for name in names) if len(found) > count else shown.last
    next_cursor = None if last is None else write_cursor(last, order)
    summary |= {"has_more": last is not None, "next_cursor": next_cursor, "per_page": limit}
    return Page(rows=found[:count], pagination=without_nulls(summary))


def window(
    rows: QuerySet[Any], order: Sequence[str], among: QuerySet[Any] | None, *, after: tuple[Any, ...] | None = None
) -> Window:
    """Return the rows, in order, that a page scans after these order values."""
    ordered = rows.order_by(*order)
    if after is not None:
        ordered = ordered.filter(_after_or_before(order, after, is_behind=True))
    if among is None:
        return Window(rows=ordered, last=None)
    all_left = among if after is None else among.filter(_after_or_before(order, after, is_behind=True))
    names = [name.removeprefix("-") for name in order]
    last = all_left.order_by(*order).values_list(*names)[ROW_LIMIT - 1 : ROW_LIMIT].first()
    return Window(
        rows=ordered if last is None else ordered.filter(_after_or_before(order, last, is_behind=False)), last=last
    )


def json_bytes(field: str) -> Func:
    """Return how many bytes a JSON field of a row takes as a text."""
    return Func(Cast(field, TextField()), function="octet_length", output_field=IntegerField())


def _after_or_before(order: Sequence[str], values: Sequence[Any], *, is_behind: bool) -> Q:
    """Return the condition that a row comes after these values in the order; else that it is at or before them."""
    names = [name.removeprefix("-") for name in order]
    operator = "gt" if is_behind != order[0].startswith("-") else "lt"
    found = Q(**{f"{names[-1]}__{operator}{'' if is_behind else 'e'}": values[-1]})
    for name, value in zip(reversed(names[:-1]), reversed(values[:-1]), strict=True):
        # The first condition is the one that the index uses.
        found = Q(**{f"{name}__{operator}e": value}) & (Q(**{f"{name}__{operator}": value}) | found)
    return found


def write_cursor(values: Sequence[Any], order: Sequence[str]) -> str:
    """Return an opaque cursor of order values."""
    values = [value.isoformat() if isinstance(value, datetime) else str(value) for value in values]
    return base64.urlsafe_b64encode(json.dumps([*order, *values]).encode()).decode().rstrip("=")


def read_cursor(cursor: str, model: type[Model], order: Sequence[str]) -> tuple[Any, ...]:
    """Return the order values of a cursor. Raises Problem if the cursor is not of a list in this order."""
    try:
        given = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        if given[: len(order)] != [*order]:
            raise ValueError  # noqa: TRY301 -- one remedy for all that is no cursor
        return tuple(_value(model, name, text) for name, text in zip(order, given[len(order) :], strict=True))
    except (ValueError, TypeError, KeyError, RecursionError, ValidationError) as error:
        raise invalid("cursor", "is not a cursor of this list; omit it to start with the first page.") from error


def _value(model: type[Model], name: str, text: object) -> Any:
    if not isinstance(text, str) or "\0" in text.encode().decode():
        raise ValueError
    value = model._meta.get_field(name.removeprefix("-")).to_python(text)  # type: ignore[union-attr]
    # In UTC: PostgreSQL knows neither all years nor all zones that Python does.
    return validate.moment("cursor", value) if isinstance(value, datetime) else value


def _offset(page: PageIn, limit: int) -> int:
    offset = ((page.page or 1) - 1) * limit if page.offset is None else page.offset
    if offset > ROW_LIMIT:
        field = "page" if page.offset is None else "offset"
        raise invalid(field, f"is more than {ROW_LIMIT:,} rows from the start; use the cursor of the previous page.")
    return offset
