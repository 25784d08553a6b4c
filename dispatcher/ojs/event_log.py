"""The event log: events of limits and queues that no row records.

The row of a call records what happened to it. That a limit held it up, that a queue refused one or was paused is not:
where the setting `event_retention` asks for a log, it is stored in the transaction in which it happens. What limits do
is written by the function take (sql/functions/note_limits.sql), the rest from here.
"""

from collections.abc import Sequence
from datetime import datetime

from django.db.models.functions import Now

from dispatcher import sql
from dispatcher.conf import conf
from dispatcher.ojs.models import EventLogEntry
from dispatcher.reports.words import format_time


def is_kept() -> bool:
    """Whether an event log is kept at all."""
    return conf().event_retention is not None


def note(entries: Sequence[EventLogEntry]) -> None:
    """Store what happened, if an event log is kept; at the time of writing."""
    if is_kept():
        for entry in entries:
            entry.call_id, entry.at = entry.data.get("job_id"), Now()
            entry.data = {
                name: format_time(value) if isinstance(value, datetime) else value for name, value in entry.data.items()
            }
        with sql.atomic():
            EventLogEntry.objects.bulk_create(entries)
