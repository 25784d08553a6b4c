"""Retention: delete calls that ended long enough ago, workers long gone, starts that no window counts."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from sys import maxsize
from time import monotonic
from typing import Any

from django.db import IntegrityError
from django.db.models import Model, QuerySet

from dispatcher import sql
from dispatcher.conf import RETENTION, conf
from dispatcher.lifecycle.retention import references
from dispatcher.models import CallQueue, KeyChange, Worker

_WORKERS_KEPT = timedelta(days=1)
_BATCH = 1_000
_KEYS = 200
"""At how many keys one statement of `trim_starts` looks."""
_TRIM_S = 0.5
"""For how long one recovery trims starts."""


class _Trim:
    """After which key this process's next slice of the starts begins."""

    key = 0


@dataclass(frozen=True, kw_only=True)
class _Trimmed:
    trimmed: int
    last: int


def delete_ended(*, now: datetime | None = None) -> int:
    """Delete ended calls past the retention of their state, in batches, within the time budget; return how many.

    Those to which rows of the project still point are kept, and reported.
    """
    settings = conf()
    stop_at = monotonic() + settings.cleanup_budget.total_seconds()
    deleted, kept = 0, references.Kept()
    for state, retention in {**RETENTION, **settings.retention}.items():
        if retention is None or monotonic() >= stop_at:
            continue
        params = {"state": state, "retention": retention, "most": _BATCH, "now": now}
        ended = CallQueue.objects.filter(state=state)
        old = Old(rows=ended, field="finished_at", statement="delete_ended", params=params)
        deleted += _delete_old(old, stop_at, kept)
    references.report(kept, "calls")
    return deleted


def delete_workers(*, now: datetime | None = None) -> int:
    """Delete the rows of Celery workers that have been gone for a day; return how many."""
    return delete_seen(Worker, "delete_workers", now)


def delete_changes(*, now: datetime | None = None) -> int:
    """Delete the changes of keys that were kept for long enough, within the time budget; return how many."""
    return delete_log(KeyChange, "delete_changes", conf().change_retention, conf().cleanup_budget, now)


def delete_seen(model: type[Model], statement: str, now: datetime | None) -> int:
    """Delete the rows of workers that have been gone for a day; return how many."""
    rows = model._base_manager.using(conf().database).all()  # noqa: SLF001 -- Django's own name
    params = {"retention": _WORKERS_KEPT, "most": maxsize, "now": now}
    old = Old(rows=rows, field="seen_at", statement=statement, params=params)
    return delete_and_report(old, conf().cleanup_budget, "workers")


def delete_log(
    model: type[Model], statement: str, retention: timedelta | None, budget: timedelta, now: datetime | None
) -> int:
    """Delete what a log has kept for long enough, in batches, within a time budget; return how many entries."""
    if retention is None:
        return 0
    rows = model._base_manager.using(conf().database).all()  # noqa: SLF001 -- Django's own name
    params = {"retention": retention, "most": _BATCH, "now": now}
    old = Old(rows=rows, field="at", statement=statement, params=params)
    return delete_and_report(old, budget, str(model._meta.verbose_name_plural))


@dataclass(frozen=True, kw_only=True)
class Old:
    """Rows that go when their time in `field` is `retention` ago, and the statement that deletes a batch of them."""

    rows: QuerySet[Any]
    field: str
    statement: str
    params: Mapping[str, Any]


def delete_and_report(old: Old, budget: timedelta, what: str) -> int:
    """Delete old rows within a time budget, and log those that are kept as rows point to them; return how many went."""
    kept = references.Kept()
    deleted = _delete_old(old, monotonic() + budget.total_seconds(), kept)
    references.report(kept, what)
    return deleted


def _delete_old(old: Old, stop_at: float, kept: references.Kept) -> int:
    """Delete old rows until this monotonic time: by one statement a batch, if no row of the project points to them."""
    deleted = 0
    if not references.of_project(old.rows.model):
        with suppress(IntegrityError):
            while True:
                deleted += (batch := _delete_batch(old))
                if batch < old.params["most"] or monotonic() >= stop_at:
                    return deleted
    before = (old.params["now"] or sql.now()) - old.params["retention"]
    return deleted + references.delete_before(old.rows, old.field, before, until=stop_at, kept=kept)


def _delete_batch(old: Old) -> int:
    with sql.own_transaction():
        sql.read_in_order()
        asked = sql.ask(old.statement, object, old.params)
        # Within a caller's transaction a foreign key that SQL alone knows would fail at its commit.
        sql.connection().check_constraints()
    return asked.cursor.rowcount


def trim_starts(*, now: datetime | None = None) -> int:
    """Delete starts that no window counts any more, for a short time; return how many.

    Each call goes on where the last one of this process ended.
    """
    stop_at = monotonic() + _TRIM_S
    trimmed = 0
    while True:
        params = {"key": _Trim.key, "most_keys": _KEYS, "most": _BATCH, "margin": conf().margin, "now": now}
        (batch,) = sql.fetch_in_order("trim_starts", _Trimmed, params)
        _Trim.key = batch.last
        trimmed += batch.trimmed
        if batch.last == 0 or monotonic() >= stop_at:
            return trimmed


def trim_shares() -> None:
    """Delete what shares of fair keys have got where it no longer counts, up to a batch."""
    sql.ask("trim_shares", object, {"most": _BATCH})
