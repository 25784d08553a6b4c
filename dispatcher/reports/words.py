"""Times and durations as people and other programs read them."""

from datetime import UTC, datetime, timedelta
from typing import ClassVar, Final

import arrow
from arrow.locales import EnglishLocale

_EXACT: Final = 10
"""Spans below this many seconds are shown exactly."""


def json_time(at: datetime | None) -> str | None:
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
    epoch = arrow.get(0)
    return epoch.shift(seconds=seconds).humanize(epoch, locale=_Brief.names[0], only_distance=True)


class _Brief(EnglishLocale):
    """English with the signs of the units; arrow knows it by its name."""

    names: ClassVar = ["en-brief"]
    timeframes: ClassVar = {
        "now": "0 s",
        "second": "1 s",
        "seconds": "{0} s",
        "minute": "1 min",
        "minutes": "{0} min",
        "hour": "1 h",
        "hours": "{0} h",
        "day": "1 d",
        "days": "{0} d",
        "week": "7 d",
        "weeks": "{0} wk",
        "month": "1 mo",
        "months": "{0} mo",
        "year": "1 y",
        "years": "{0} y",
    }
