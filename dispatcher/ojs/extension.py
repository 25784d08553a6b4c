"""What the Open Job Spec adds to the engine: the event log, leases of fetched calls, and their retention."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from dispatcher import extension
from dispatcher.conf import conf
from dispatcher.ojs import enqueue, event_log, jobs, reclaim, retention
from dispatcher.ojs.options import OjsOptions
from dispatcher.request import Extras


class OpenJobSpec(extension.Extension):
    """The steps of the engine that `dispatcher.ojs` takes part in."""

    serves_http = True

    def keeps_events(self) -> bool:
        """Return whether the setting `event_retention` asks for an event log."""
        return event_log.is_kept()

    def note_event(self, kind: str, data: Mapping[str, Any], *, queue: str | None = None) -> None:
        """Store an event, if an event log is kept."""
        event_log.note([event_log.Entry(kind=kind, data=data, queue=queue)])

    def store_extras(self, extras: Mapping[UUID, Extras]) -> None:
        """Store the options of jobs beside their calls."""
        jobs.store({call: each for call, each in extras.items() if isinstance(each, OjsOptions)})

    def reclaim(self, *, until: datetime | None = None, now: datetime | None = None) -> int:
        """End the attempts of fetched calls whose lease, or time, ran out; return how many."""
        return reclaim.reclaim(until=until, now=now)

    def recover(self, *, now: datetime | None = None) -> None:
        """Record which queues have room again, and trim the event log."""
        enqueue.clear_backpressure()
        retention.delete_entries(now=now)

    def clean_up(self, *, now: datetime | None = None) -> None:
        """Delete old workers that fetched, old workflows and old entries of the event log."""
        retention.delete_workers(now=now)
        retention.delete_workflows(now=now)
        retention.delete_entries(budget=conf().cleanup_budget, now=now)
