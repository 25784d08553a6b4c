"""Retention: delete calls that ended long enough ago, workers long gone, parts of windows that no longer count."""

from datetime import datetime, timedelta
from time import monotonic

from dispatcher import sql
from dispatcher.conf import RETENTION, conf

_BATCH = 1_000
_WORKERS_KEPT = timedelta(days=1)


def delete_ended(*, now: datetime | None = None) -> int:
    """Delete ended calls past the retention of their state, in batches, within the time budget; return how many."""
    settings = conf()
    stop_at = monotonic() + settings.cleanup_budget.total_seconds()
    deleted = 0
    for state, retention in {**RETENTION, **settings.retention}.items():
        if retention is None:
            continue
        params = {"state": state, "retention": retention, "most": _BATCH, "now": now}
        while monotonic() < stop_at and (batch := sql.change("delete_ended", params)):
            deleted += batch
    return deleted


def delete_workers(*, now: datetime | None = None) -> int:
    """Delete the rows of workers that have been gone for a day, Celery's and those that fetch; return how many."""
    params = {"retention": _WORKERS_KEPT, "now": now}
    return sql.change("delete_workers", params) + sql.change("delete_pullers", params)


def delete_workflows(*, now: datetime | None = None) -> int:
    """Delete workflows past the longest retention of calls; return how many."""
    kept = {**RETENTION, **conf().retention}.values()
    longest = max((retention for retention in kept if retention is not None), default=timedelta(0))
    if None in kept:
        return 0
    return sql.change("delete_workflows", {"retention": longest, "now": now})


def delete_entries(*, now: datetime | None = None) -> int:
    """Delete what the journal has kept for long enough; return how many entries."""
    retention = conf().journal
    return 0 if retention is None else sql.change("delete_entries", {"retention": retention, "now": now})


def trim_windows(*, now: datetime | None = None) -> int:
    """Delete the parts of windows that can no longer count and were not used again; return how many."""
    return sql.change("trim_windows", {"margin": conf().margin, "now": now})
