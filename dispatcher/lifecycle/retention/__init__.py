"""Retention: delete calls that ended long enough ago, workers long gone, parts of windows that no longer count."""

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
_SLICE = 5_000
"""How many parts of windows one call of `trim_windows` looks at."""
_LEAST = -(2**63)


class _Trim:
    """Where this process's next slice of the windows begins."""

    key = _LEAST
    place = _LEAST


@dataclass(frozen=True, kw_only=True)
class _Trimmed:
    trimmed: int
    last_key: int | None
    last_place: int | None


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
        ended = CallQueue.objects.using(settings.database).filter(state=state)
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
        sql.read_in_order(sorts=False)
        asked = sql.ask(old.statement, object, old.params)
        # Within a caller's transaction a foreign key that SQL alone knows would fail at its commit.
        sql.connection().check_constraints()
    return asked.cursor.rowcount


def trim_windows(*, now: datetime | None = None) -> int:
    """Delete parts of windows that can no longer count and were not used again; return how many.

    Each call looks at the next slice of the table, and the first of a process at the first one.
    """
    params = {"key": _Trim.key, "place": _Trim.place, "most": _SLICE, "margin": conf().margin, "now": now}
    (trimmed,) = sql.fetch("trim_windows", _Trimmed, params)
    _Trim.key = _LEAST if trimmed.last_key is None else trimmed.last_key
    _Trim.place = _LEAST if trimmed.last_place is None else trimmed.last_place
    return trimmed.trimmed
