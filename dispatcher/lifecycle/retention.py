"""Retention: delete calls that ended long enough ago, and parts of windows that no longer count."""

from datetime import datetime
from time import monotonic

from dispatcher import sql
from dispatcher.conf import RETENTION, conf

_BATCH = 1_000


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


def trim_windows(*, now: datetime | None = None) -> int:
    """Delete the parts of windows that can no longer count; return how many."""
    return sql.change("trim_windows", {"now": now})
