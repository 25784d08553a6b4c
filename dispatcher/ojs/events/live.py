"""Live events: a process reads once for all of its streams with the same filter, over one connection at a time."""

from dataclasses import dataclass
from threading import Lock
from time import monotonic
from typing import Final
from weakref import WeakValueDictionary

from dispatcher.ojs.auth import Access
from dispatcher.ojs.events.query import EventFilter, Page, after
from dispatcher.ojs.long_poll import disconnect

_FRESH_S: Final = 0.5
"""How long one stream's read is shared with the others."""
_MOST: Final = 1_000
"""The maximum number of events in one read."""


@dataclass(frozen=True, kw_only=True)
class _Read:
    since: str
    page: Page
    fresh_until: float

    def covers(self, cursor: str) -> bool:
        """Return whether this read has the events after a cursor."""
        is_within = self.since <= cursor < self.page.cursor or (cursor == self.page.cursor and not self.page.has_more)
        return is_within and monotonic() < self.fresh_until


class LiveEvents:
    """The recent reads of the streams of one process."""

    def __init__(self) -> None:
        """Start without reads."""
        self._lock = Lock()
        self._reading: WeakValueDictionary[EventFilter, Lock] = WeakValueDictionary()
        """One stream reads for all that have the same filter; streams with other filters do not wait for it."""
        self._reads: dict[EventFilter, _Read] = {}
        self._holds: dict[Access, tuple[bool, float]] = {}

    def after(self, wanted: EventFilter, cursor: str) -> Page:
        """Return the next events after a cursor."""
        with self._lock:
            reading = self._reading.setdefault(wanted, Lock())
        with reading:
            read = self._reads.get(wanted)
            if read is None or not read.covers(cursor):
                page = after(wanted, cursor, _MOST)
                disconnect()
                read = _Read(since=cursor, page=page, fresh_until=monotonic() + _FRESH_S)
                with self._lock:
                    kept = {each: known for each, known in self._reads.items() if known.fresh_until > monotonic()}
                    self._reads = {**kept, wanted: read}
        events = [event for event in read.page.events if event["id"] > cursor]
        return Page(events=events, cursor=read.page.cursor, has_more=read.page.has_more)

    def is_valid(self, access: Access) -> bool:
        """Return whether the credentials of a stream are still valid."""
        with self._lock:
            holds, until = self._holds.get(access, (False, 0.0))
            if monotonic() >= until:
                holds = access.is_valid()
                disconnect()
                self._holds = {each: known for each, known in self._holds.items() if known[1] > monotonic()}
                self._holds[access] = (holds, monotonic() + _FRESH_S)
        return holds


LIVE: Final = LiveEvents()
"""The recent reads of this process."""
