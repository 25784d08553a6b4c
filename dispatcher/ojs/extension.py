"""What the Open Job Spec adds to the engine: the event log, leases of fetched calls, and their retention."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Q

from dispatcher import extension, sql
from dispatcher.conf import RETENTION, conf
from dispatcher.lifecycle.retention import WORKERS_KEPT
from dispatcher.lifecycle.retention.old import delete_old
from dispatcher.models import Process
from dispatcher.ojs import enqueue, event_log, jobs, pull_workers
from dispatcher.ojs.jobs import OjsOptions
from dispatcher.ojs.models import EventLogEntry, PullWorker, Workflow
from dispatcher.request import Extras

TRIM_BUDGET = timedelta(seconds=0.1)
"""How long one recovery may spend on what the event log has kept for long enough."""
_MARKS_KEPT = timedelta(hours=1)
_WORKFLOWS = 100
"""How many workflows go at once, each with all that is in it."""


def delete_workers(*, now: datetime | None = None) -> int:
    """Delete the rows of workers that fetch and have been gone for a day, and marks that they left; return how many."""
    # What a process left that has died: it marks its fetches that wait (see mark_waiting).
    old = Q(idle_at=None) | Q(idle_at__lt=(now or sql.now()) - _MARKS_KEPT)
    Process.objects.filter(old, worker_id=None).delete()
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


class OpenJobSpec(extension.Extension):
    """The steps of the engine that `dispatcher.ojs` takes part in."""

    serves_http = True

    def keeps_events(self) -> bool:
        """Return whether the setting `event_retention` asks for an event log."""
        return event_log.is_kept()

    def note_event(self, kind: str, data: Mapping[str, Any], *, queue: str | None = None) -> None:
        """Store an event, if an event log is kept."""
        event_log.note([EventLogEntry(kind=kind, data=data, queue=queue)])

    def store_extras(self, extras: Mapping[UUID, Extras]) -> None:
        """Store the options of jobs beside their calls."""
        jobs.store({call: each for call, each in extras.items() if isinstance(each, OjsOptions)})

    def reclaim(self, *, until: datetime | None = None, now: datetime | None = None) -> int:
        """End the attempts of fetched calls whose lease, or time, ran out; return how many."""
        return pull_workers.reclaim(until=until, now=now)

    def recover(self, *, now: datetime | None = None) -> None:
        """Record which queues have room again, and trim the event log."""
        enqueue.clear_backpressure()
        delete_entries(now=now)

    def clean_up(self, *, now: datetime | None = None) -> None:
        """Delete old workers that fetched, old workflows and old entries of the event log."""
        delete_workers(now=now)
        delete_workflows(now=now)
        delete_entries(budget=conf().cleanup_budget, now=now)
