"""Retention: delete old workers that fetched over HTTP, workflows, and entries of the event log."""

from datetime import datetime, timedelta

from dispatcher import sql
from dispatcher.conf import RETENTION, conf
from dispatcher.lifecycle.retention import WORKERS_KEPT
from dispatcher.lifecycle.retention.old import delete_old
from dispatcher.ojs.models import EventLogEntry, PullWorker, Workflow

TRIM_BUDGET = timedelta(seconds=0.1)
"""How long one recovery may spend on what the event log has kept for long enough."""
_MARKS_KEPT = timedelta(hours=1)
_WORKFLOWS = 100
"""How many workflows go at once, each with all that is in it."""


def delete_workers(*, now: datetime | None = None) -> int:
    """Delete the rows of workers that fetch and have been gone for a day, and marks that they left; return how many."""
    sql.change("delete_marks", {"retention": _MARKS_KEPT, "now": now})
    workers = PullWorker.objects.all()
    return delete_old([(workers, WORKERS_KEPT)], "seen_at", conf().cleanup_budget, now)


def delete_workflows(*, now: datetime | None = None) -> int:
    """Delete workflows past the longest retention of calls, in batches, within the time budget; return how many.

    Each goes with its parts, and with the workflows in it.
    """
    settings = conf()
    retentions = {**RETENTION, **settings.retention}.values()
    longest = None if None in retentions else max(kept for kept in retentions if kept is not None)
    whole = Workflow.objects.filter(parent=None)
    return delete_old([(whole, longest)], "ended_at", settings.cleanup_budget, now, _WORKFLOWS)


def delete_entries(*, budget: timedelta = TRIM_BUDGET, now: datetime | None = None) -> int:
    """Delete what the event log has kept for long enough, in batches, within a time budget; return how many entries."""
    entries = EventLogEntry.objects.all()
    return delete_old([(entries, conf().event_retention)], "at", budget, now)
