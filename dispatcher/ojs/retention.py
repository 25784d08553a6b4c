"""Retention: delete old workers that fetched over HTTP, workflows, and entries of the event log."""

from datetime import datetime, timedelta

from dispatcher import sql
from dispatcher.conf import RETENTION, conf
from dispatcher.lifecycle import retention
from dispatcher.models import EventLogEntry
from dispatcher.ojs.models import PullWorker, Workflow

TRIM_BUDGET = timedelta(seconds=0.1)
"""How long one recovery may spend on what the event log has kept for long enough."""
_MARKS_KEPT = timedelta(hours=1)
_WORKFLOWS = 100
"""How many workflows go at once, each with all that is in it."""


def delete_workers(*, now: datetime | None = None) -> int:
    """Delete the rows of workers that fetch and have been gone for a day, and marks that they left; return how many."""
    sql.change("delete_marks", {"retention": _MARKS_KEPT, "now": now})
    return retention.delete_seen(PullWorker, "delete_pull_workers", now)


def delete_workflows(*, now: datetime | None = None) -> int:
    """Delete workflows past the longest retention of calls, in batches, within the time budget; return how many."""
    settings = conf()
    retentions = {**RETENTION, **settings.retention}.values()
    longest = max((kept for kept in retentions if kept is not None), default=timedelta(0))
    if None in retentions:
        return 0
    params = {"retention": longest, "most": _WORKFLOWS, "now": now}
    whole = Workflow.objects.filter(parent=None)
    old = retention.Old(rows=whole, field="ended_at", statement="delete_workflows", params=params)
    return retention.delete_and_report(old, settings.cleanup_budget, "workflows")


def delete_entries(*, budget: timedelta = TRIM_BUDGET, now: datetime | None = None) -> int:
    """Delete what the event log has kept for long enough, in batches, within a time budget; return how many entries."""
    return retention.delete_log(EventLogEntry, "delete_entries", conf().event_retention, budget, now)
