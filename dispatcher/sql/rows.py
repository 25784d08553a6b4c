"""How rows become objects, and how times and durations are read and written."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache, partial
from typing import Any, TypeVar

import psycopg
from django.db.models import Model
from psycopg import adapters
from psycopg.abc import Buffer
from psycopg.adapt import Dumper
from psycopg.rows import BaseRowFactory, scalar_row
from psycopg.types.datetime import TimestamptzLoader
from psycopg.types.json import JsonbLoader

from dispatcher.conf import conf

Row = TypeVar("Row")


class _UtcLoader(TimestamptzLoader):
    """Reads times in UTC, whatever USE_TZ and the connection's zone are: a local hour may come twice."""

    def load(self, data: Buffer) -> datetime:
        try:
            # In C; psycopg takes the text apart with a regular expression.
            return datetime.fromisoformat(bytes(data).decode()).astimezone(UTC)
        except ValueError:
            return super().load(data).astimezone(UTC)


class _SecondsDumper(Dumper):
    """Writes durations."""

    oid = adapters.types["interval"].oid

    def dump(self, obj: timedelta) -> Buffer:
        return interval(obj).encode()


@lru_cache(maxsize=256)
def interval(duration: timedelta) -> str:
    """Write a duration in hours: a day may have 23 of them in the connection's zone.

    Not in seconds alone: PostgreSQL 14 reads no more of them than an int has, 68 years.
    """
    hours, rest = divmod(duration, timedelta(hours=1))
    return f"{hours} hours {rest.seconds} seconds {rest.microseconds} microseconds"


def record(values: Iterable[object]) -> str:
    """Write durations, times, whole numbers, truth values and NULLs as the text of a composite type."""
    return f"({','.join(map(_field, values))})"


def _field(value: object) -> str:
    if isinstance(value, timedelta):
        return interval(value)
    return "" if value is None else str(value)


@lru_cache(maxsize=256)
def array(texts: tuple[str, ...]) -> str:
    """Write texts as the text of an array, once: each trip has the same queues and tasks."""
    quoted = ['"{}"'.format(text.replace("\\", r"\\").replace('"', r"\"")) for text in texts]
    return f"{{{','.join(quoted)}}}"


def cursor(raw: psycopg.Connection[Any], row: type[Row]) -> psycopg.Cursor[Row]:
    """Return a cursor that binds on the server, and reads jsonb as values.

    row: the dataclass or the model of its rows, or the type of its only column.
    """
    made = psycopg.RawCursor(raw, row_factory=_factory(row))
    made.adapters.register_loader("jsonb", JsonbLoader)
    made.adapters.register_loader("timestamptz", _UtcLoader)
    made.adapters.register_dumper(timedelta, _SecondsDumper)
    return made


def _factory(row: type[Row]) -> BaseRowFactory[Any]:
    if is_dataclass(row):
        return partial(_dataclass_row, row)
    return partial(_model_row, row) if issubclass(row, Model) else scalar_row


def _dataclass_row(kind: type[Any], cursor: psycopg.Cursor[Any]) -> Callable[[Sequence[Any]], Any]:
    result = cursor.pgresult
    columns = () if result is None else tuple(map(result.fname, range(result.nfields)))
    return _maker(kind, columns)  # type: ignore[arg-type]


@cache
def _maker(kind: type[Any], columns: tuple[bytes | None, ...]) -> Callable[[Sequence[Any]], Any]:
    """Return what makes an instance of each row, all fields at once: a frozen dataclass sets them one by one.

    Raises TypeError where columns and fields differ.
    """
    names = [column.decode() for column in columns if column is not None]
    needed = {each.name for each in fields(kind) if each.default is MISSING}
    if not needed <= {*names} <= {each.name for each in fields(kind)}:
        message = f"the columns {', '.join(names)} are not the fields of {kind.__name__}"
        raise TypeError(message)

    def make(values: Sequence[Any]) -> Any:
        made = object.__new__(kind)
        made.__dict__.update(zip(names, values, strict=True))
        return made

    return make


def _model_row(model: type[Model], cursor: psycopg.Cursor[Any]) -> Callable[[Sequence[Any]], Model]:
    """Return what makes an instance of each row, saved, with the fields deferred that the row does not have."""
    places = {column.name: place for place, column in enumerate(cursor.description or ())}
    order = [places[field.attname] for field in model._meta.concrete_fields if field.attname in places]
    return lambda values: model.from_db(conf().database, places, [values[place] for place in order])
