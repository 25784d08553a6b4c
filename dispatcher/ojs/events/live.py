"""Live events: what streams of a process ask for is read once for all of them, over one connection at a time."""

from dataclasses import dataclass
from threading import Lock
from time import monotonic
from typing import Final
from weakref import WeakValueDictionary

from dispatcher.ojs.auth import Access
from dispatcher.ojs.events.query import Asked, Page, after
from dispatcher.ojs.long_poll import disconnect

_FRESH_S: Final = 0.5
"""How long what one stream has read is given to others."""
_MOST: Final = 1_000
"""The most events of one read."""


@dataclass(frozen=True, kw_only=True)
class _Read:
    since: str
    page: Page
    fresh_until: float

    def covers(self, cursor: str) -> bool:
        """Return whether this says what comes after a cursor."""
        is_within = self.since <= cursor < self.page.cursor or (cursor == self.page.cursor and not self.page.has_more)
        return is_within and monotonic() < self.fresh_until


class LiveEvents:
    """What the streams of one process have read lately."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._lock = Lock()
        self._reading: WeakValueDictionary[Asked, Lock] = WeakValueDictionary()
        """One reads for all that ask for the same; others do not wait for it."""
        self._reads: dict[Asked, _Read] = {}
        self._holds: dict[Access, tuple[bool, float]] = {}

    def after(self, asked: Asked, cursor: str) -> Page:
        """Return the next events after a cursor."""
        with self._lock:
            reading = self._reading.setdefault(asked, Lock())
        with reading:
            read = self._reads.get(asked)
            if read is None or not read.covers(cursor):
                page = after(asked, cursor, _MOST)
                disconnect()
                read = _Read(since=cursor, page=page, fresh_until=monotonic() + _FRESH_S)
                with self._lock:
                    kept = {each: known for each, known in self._reads.items() if known.fresh_until > monotonic()}
                    self._reads = {**kept, asked: read}
        events = [event for event in read.page.events if event["id"] > cursor]
        return Page(events=events, cursor=read.page.cursor, has_more=read.page.has_more)

    def holds(self, access: Access) -> bool:
        """Return whether the credentials of a stream still allow it."""
        with self._lock:
            holds, until = self._holds.get(access, (False, 0.0))
            if monotonic() >= until:
                holds = access.holds()
                disconnect()
                self._holds = {each: known for each, known in self._holds.items() if known[1] > monotonic()}
                self._holds[access] = (holds, monotonic() + _FRESH_S)
        return holds


LIVE: Final = LiveEvents()
"""Those of this process."""
