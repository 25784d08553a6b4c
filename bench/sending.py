"""What a send costs its caller."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import uuid_utils.compat as uuid7
from django.db import connection
from psycopg import sql
from psycopg.types.json import Jsonb

from bench import database, fixtures
from bench.figures import Bench, Bound, Figure, each, side_by_side
from bench.models import BareCall
from bench.tasks import nothing
from dispatcher.models import CallQueue, Queue, RateLimitKey
from dispatcher.request import Call
from dispatcher.states import Delivery

SENDS = 100
MANY = 1_000
AMPLE = 1_000_000
DIRECT = "bench.direct"
KWARGS = {"order": 4711, "customer": "acme", "amount": "19.99", "currency": "EUR"}
LATER = datetime(2100, 1, 1, tzinfo=UTC)


def send(bench: Bench) -> Iterator[Figure]:
    """One send: for later, behind a full key, and at once."""
    fixtures.clear()
    RateLimitKey.objects.declare("full", concurrency=0)
    RateLimitKey.objects.declare("ample", concurrency=AMPLE)
    bare = partial(BareCall._default_manager.create, **_columns())  # noqa: SLF001 -- a model in general has no other name for it
    for name, options in (
        ("send that only records: for later", {"keys": ["ample"], "scheduled_at": LATER}),
        ("send that only records: behind a full key", {"keys": ["full"]}),
    ):
        recorded = partial(CallQueue.objects.send, nothing, kwargs=KWARGS, **options)
        ours, reference = side_by_side(
            partial(each, recorded, bench.effort.calls(SENDS)),
            partial(each, bare, bench.effort.calls(SENDS)),
            rounds=bench.effort.rounds,
        )
        yield Figure(name=name, ours=ours, reference=reference, unit="ms", side=Bound.AT_MOST, bound=1.5)

    Queue.objects.get_or_create(name=DIRECT, delivery=Delivery.DIRECT)
    recorded = partial(CallQueue.objects.send, nothing, kwargs=KWARGS, keys=["ample"], queue=DIRECT)
    ours, reference = side_by_side(
        partial(each, recorded, bench.effort.calls(SENDS)),
        partial(each, bare, bench.effort.calls(SENDS)),
        rounds=bench.effort.rounds,
    )
    yield Figure(
        name="send to a direct queue: record, and wake",
        ours=ours,
        reference=reference,
        unit="ms",
        side=Bound.AT_MOST,
        bound=1.2,
    )

    at_once = partial(CallQueue.objects.send, nothing, keys=["ample"])

    def dispatched() -> float:
        fixtures.forget_messages()
        fixtures.end_all("ample")
        return each(at_once, bench.effort.calls(SENDS))

    def delayed() -> float:
        fixtures.forget_messages()
        return each(nothing.delay, bench.effort.calls(SENDS))

    ours, reference = side_by_side(dispatched, delayed, rounds=bench.effort.rounds)
    yield Figure(
        name="send that dispatches at once",
        ours=ours,
        reference=reference,
        unit="ms",
        side=Bound.AT_MOST,
        bound=2.5,
    )


def send_many(bench: Bench) -> Iterator[Figure]:
    """Send a thousand calls in one go, that wait behind a full key."""
    fixtures.clear()
    RateLimitKey.objects.declare("full", concurrency=0)
    calls = [Call(task=nothing, kwargs=KWARGS, keys=["full"]) for _ in range(MANY)]
    text, row = _bare_insert()

    def insert() -> None:
        database.execute(text, [value for _ in range(MANY) for value in (uuid7.uuid7(), *row)])

    ours, reference = side_by_side(
        partial(_rate, partial(CallQueue.objects.send_many, calls)),
        partial(_rate, insert),
        rounds=bench.effort.rounds,
    )
    yield Figure(
        name="send_many(1000)",
        ours=ours,
        reference=reference,
        unit="calls/s",
        side=Bound.AT_LEAST,
        bound=0.35,
    )


def _rate(action: Any) -> float:
    """Return the calls per second of an action that takes MANY of them."""
    return MANY * 1_000 / each(action, 3)


def _columns() -> dict[str, Any]:
    """Return what the bare row says, column by column."""
    return {
        "lane_id": 1,
        "task": nothing.name,
        "kwargs": KWARGS,
        "queue": "bench",
        "state": "scheduled",
        "scheduled_at": LATER + timedelta(0),
    }


def _bare_insert() -> tuple[str, list[Any]]:
    """Return one INSERT of MANY rows with all the columns of a call, and a row without its id."""
    made = BareCall(**_columns(), created_at=LATER)
    fields = [field for field in BareCall._meta.concrete_fields if field.name not in {"id", "position"}]
    values = [getattr(made, field.attname) for field in fields]
    columns = [sql.Identifier("id"), *(sql.Identifier(field.get_attname()) for field in fields)]
    row = sql.SQL("({})").format(sql.SQL(", ").join([sql.Placeholder()] * len(columns)))
    text = sql.SQL("INSERT INTO bench_call ({}) VALUES {}").format(
        sql.SQL(", ").join(columns), sql.SQL(", ").join([row] * MANY)
    )
    connection.ensure_connection()
    return text.as_string(connection.connection), [
        Jsonb(value) if isinstance(value, list | dict) else value for value in values
    ]
