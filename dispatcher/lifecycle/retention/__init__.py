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
from dispatcher.models import CallQueue, EventLogEntry, KeyChange, PullWorker, Worker, Workflow

TRIM_BUDGET = timedelta(seconds=0.1)
"""How long one recovery may spend on what the event log has kept for long enough."""
_BATCH = 1_000
_WORKFLOWS = 100
"""How many workflows go at once, each with all that is in it."""
_WORKERS_KEPT = timedelta(days=1)
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
        old = _Old(rows=ended, field="finished_at", statement="delete_ended", params=params)
        deleted += _delete_old(old, stop_at, kept)
    references.report(kept, "calls")
    return deleted


def delete_workers(*, now: datetime | None = None) -> int:
    """Delete the rows of workers that have been gone for a day, Celery's and those that fetch; return how many."""
    settings = conf()
    params = {"retention": _WORKERS_KEPT, "most": maxsize, "now": now}
    gone: list[tuple[QuerySet[Any], str]] = [
        (Worker.objects.using(settings.database).all(), "delete_workers"),
        (PullWorker.objects.using(settings.database).all(), "delete_pull_workers"),
    ]
    old = [_Old(rows=rows, field="seen_at", statement=statement, params=params) for rows, statement in gone]
    return sum([_delete_and_report(each, settings.cleanup_budget, "workers") for each in old])


def delete_workflows(*, now: datetime | None = None) -> int:
    """Delete workflows past the longest retention of calls, in batches, within the time budget; return how many."""
    settings = conf()
    retentions = {**RETENTION, **settings.retention}.values()
    longest = max((retention for retention in retentions if retention is not None), default=timedelta(0))
    if None in retentions:
        return 0
    params = {"retention": longest, "most": _WORKFLOWS, "now": now}
    whole = Workflow.objects.using(settings.database).filter(parent=None)
    old = _Old(rows=whole, field="ended_at", statement="delete_workflows", params=params)
    return _delete_and_report(old, settings.cleanup_budget, "workflows")


def delete_entries(*, budget: timedelta = TRIM_BUDGET, now: datetime | None = None) -> int:
    """Delete what the event log has kept for long enough, in batches, within a time budget; return how many entries."""
    return _delete_log(EventLogEntry, "delete_entries", conf().event_retention, budget, now)


def delete_changes(*, now: datetime | None = None) -> int:
    """Delete the changes of keys that were kept for long enough, within the time budget; return how many."""
    return _delete_log(KeyChange, "delete_changes", conf().change_retention, conf().cleanup_budget, now)


def _delete_log(
    model: type[Model], statement: str, retention: timedelta | None, budget: timedelta, now: datetime | None
) -> int:
    if retention is None:
        return 0
    rows = model._base_manager.using(conf().database).all()  # noqa: SLF001 -- Django's own name
    params = {"retention": retention, "most": _BATCH, "now": now}
    old = _Old(rows=rows, field="at", statement=statement, params=params)
    return _delete_and_report(old, budget, str(model._meta.verbose_name_plural))


@dataclass(frozen=True, kw_only=True)
class _Old:
    """Rows that go when their time in `field` is `retention` ago, and the statement that deletes a batch of them."""

    rows: QuerySet[Any]
    field: str
    statement: str
    params: Mapping[str, Any]


def _delete_and_report(old: _Old, budget: timedelta, what: str) -> int:
    kept = references.Kept()
    deleted = _delete_old(old, monotonic() + budget.total_seconds(), kept)
    references.report(kept, what)
    return deleted


def _delete_old(old: _Old, stop_at: float, kept: references.Kept) -> int:
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


def _delete_batch(old: _Old) -> int:
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
