"""How rows become objects, and how times and durations are read and written."""

from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import psycopg
from django.db.models import Model
from psycopg import adapters
from psycopg.abc import Buffer
from psycopg.adapt import Dumper
from psycopg.rows import BaseRowFactory, class_row, scalar_row
from psycopg.types.datetime import TimestamptzLoader
from psycopg.types.json import JsonbLoader

from dispatcher.conf import conf

Row = TypeVar("Row")


class _UtcLoader(TimestamptzLoader):
    """Reads times in UTC, whatever USE_TZ and the connection's zone are: a local hour may come twice."""

    def load(self, data: Buffer) -> datetime:
        return super().load(data).astimezone(UTC)


class _SecondsDumper(Dumper):
    """Writes durations."""

    oid = adapters.types["interval"].oid

    def dump(self, obj: timedelta) -> Buffer:
        return interval(obj).encode()


def interval(duration: timedelta) -> str:
    """Write a duration in hours: a day may have 23 of them in the connection's zone.

    Not in seconds alone: PostgreSQL 14 reads no more of them than an int has, 68 years.
    """
    hours, rest = divmod(duration, timedelta(hours=1))
    return f"{hours} hours {rest.seconds} seconds {rest.microseconds} microseconds"


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
        return class_row(row)
    return partial(_model_row, row) if issubclass(row, Model) else scalar_row


def _model_row(model: type[Model], cursor: psycopg.Cursor[Any]) -> Callable[[Sequence[Any]], Model]:
    """Return what makes an instance of each row, saved, with the fields deferred that the row does not have."""
    places = {column.name: place for place, column in enumerate(cursor.description or ())}
    order = [places[field.attname] for field in model._meta.concrete_fields if field.attname in places]
    return lambda values: model.from_db(conf().database, places, [values[place] for place in order])
