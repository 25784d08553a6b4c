"""Times and durations as people and other programs read them."""

from datetime import UTC, datetime, timedelta
from typing import Final

import arrow

_EXACT: Final = 10
"""Spans below this many seconds are shown exactly."""
_UNITS: Final = (
    (31_536_000, "y"),
    (2_592_000, "mo"),
    (604_800, "wk"),
    (86_400, "d"),
    (3_600, "h"),
    (60, "min"),
    (1, "s"),
)


def format_time(at: datetime | None) -> str | None:
    """Write a time as RFC 3339, in UTC and milliseconds."""
    if at is None:
        return None
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def in_words(at: datetime, now: datetime) -> str:
    """Return a time relative to now, for people: "in 0.3 s", "in 5 minutes", "2 hours ago"."""
    seconds = (at - now).total_seconds()
    if abs(seconds) >= _EXACT:
        return arrow.get(at).humanize(now)
    return f"in {seconds:.2g} s" if seconds > 0 else "just now"


def brief(span: timedelta) -> str:
    """Return a short form of a duration, for people: "0.3 s", "44 s", "5 min", "2 h"."""
    seconds = max(0.0, span.total_seconds())
    if seconds < _EXACT:
        return f"{seconds:.2g} s"
    size, unit = next((size, unit) for size, unit in _UNITS if seconds >= size)
    return f"{seconds // size:.0f} {unit}"
