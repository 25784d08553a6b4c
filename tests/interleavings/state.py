"""The tables of the dispatcher: kept as they are, put back for the next schedule, and compared."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.apps import apps
from django.db import connection

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?(?:[+]\d\d(?::\d\d)?)?")


@dataclass(frozen=True)
class Tables:
    """What to run to have the tables as they were, and what to read to know how they are."""

    back: str
    now: str

    def put_back(self) -> None:
        """Let the tables, and what is counted on with them, be as they were."""
        _run(self.back)

    def seen(self, local: str = "") -> str:
        """Write down what is committed, and what the actors know.

        Of times it is only their order that matters, the present included; of UUIDs, which are the same.
        """
        (text,) = _run(self.now)
        order = {at: number for number, at in enumerate(sorted(set(_TIME.findall(text))))}
        numbers: dict[str, int] = {}
        text = _TIME.sub(lambda at: f"t{order[at.group()]}", text) + _TIME.sub("", local)
        return _UUID.sub(lambda found: f"u{numbers.setdefault(found.group(), len(numbers))}", text)


@contextmanager
def kept() -> Iterator[Tables]:
    """Keep what is in the tables of the dispatcher now, and put it back at the end."""
    names = [model._meta.db_table for model in apps.get_app_config("dispatcher").get_models()]
    columns = {
        name: _run(
            "SELECT string_agg(attname, ', ') FROM pg_attribute"
            f" WHERE attrelid = '{name}'::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''"
        )[0]
        for name in names
    }
    sequences = _run("SELECT array_agg(sequencename::text) FROM pg_sequences WHERE sequencename LIKE 'dispatcher%'")[0]
    _run("".join(f"CREATE TEMP TABLE kept_{name} AS TABLE {name};" for name in names))
    counted = [(name, _run(f"SELECT nextval('{name}')")[0]) for name in sequences]
    rows = ", ".join(f"(SELECT json_agg(row ORDER BY row::text) FROM {name} AS row)" for name in names)
    tables = Tables(
        back="".join(
            f"DELETE FROM {name}; INSERT INTO {name} ({columns[name]}) SELECT {columns[name]} FROM kept_{name};"
            for name in names
        )
        + "".join(f"SELECT setval('{name}', {number});" for name, number in counted),
        now=f"SELECT json_build_array(clock_timestamp(), {rows})::text",
    )
    try:
        yield tables
    finally:
        tables.put_back()
        _run("".join(f"DROP TABLE kept_{name};" for name in names))


def _run(statements: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(statements)
        return cursor.fetchone() if cursor.description else None
