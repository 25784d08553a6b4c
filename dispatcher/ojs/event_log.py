"""The event log: events of limits and queues that no row records.

The row of a call records what happened to it. That a limit held it up, that a queue refused one or was paused is not:
where the setting `event_retention` asks for a log, it is stored in the transaction in which it happens. What limits do
is written by the function take (sql/functions/note_limits.sql), the rest from here.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from dispatcher import sql
from dispatcher.conf import conf


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Something that happened: its kind, as the Open Job Spec names it (ojs-events, section 3), and its data."""

    kind: str
    data: Mapping[str, Any]
    queue: str | None = None
    """The queue that it happened to, or in."""


def is_kept() -> bool:
    """Whether an event log is kept at all."""
    return conf().event_retention is not None


def note(entries: Collection[Entry]) -> None:
    """Store what happened, if an event log is kept; at the time of writing."""
    if entries and is_kept():
        params = {
            "kinds": [entry.kind for entry in entries],
            "queues": [entry.queue for entry in entries],
            "data": [json.dumps(entry.data) for entry in entries],
        }
        sql.ask("note_entries", object, params)
