"""Durations as settings, policies and requests write them: read and written."""

import math
import re
from contextlib import suppress
from datetime import timedelta
from typing import Final

from dispatcher.errors import PolicyInvalid

_DURATION: Final = re.compile(
    r"P(?:(?P<weeks>\d+)W)?(?:(?P<days>\d+)D)?"
    r"(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d{1,6})?)S)?)?"
)
_NAMED_PERIODS: Final = {
    "second": timedelta(seconds=1),
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
}


def parse_duration(value: object, field: str = "period") -> timedelta:
    """Read an ISO 8601 duration ("PT1M"), a number of seconds, a timedelta, or second/minute/hour/day.

    Months and years have no fixed length and are refused. Raises PolicyInvalid naming `field`.
    """
    with suppress(OverflowError):
        match value:
            case timedelta():
                return value
            case bool():
                pass
            case int() | float() if math.isfinite(value):
                return timedelta(seconds=value)
            case str() if value in _NAMED_PERIODS:
                return _NAMED_PERIODS[value]
            case str() if (found := _DURATION.fullmatch(value)) and any(found.groups()):
                return timedelta(**{unit: float(amount) for unit, amount in found.groupdict().items() if amount})
    raise PolicyInvalid(
        field,
        f"{value!r} is not a duration; give ISO 8601 such as 'PT1M' or 'PT0.5S' (no months or years), "
        "a timedelta, or seconds.",
    )


def format_duration(value: timedelta) -> str:
    """Write a duration as ISO 8601, in the largest whole units up to days: 90 s is 'PT1M30S'."""
    days, rest = divmod(value, timedelta(days=1))
    hours, rest = divmod(rest, timedelta(hours=1))
    minutes, rest = divmod(rest, timedelta(minutes=1))
    seconds = f"{rest.total_seconds():.6f}".rstrip("0").rstrip(".")
    date = f"{days}D" if days else ""
    time = (f"{hours}H" if hours else "") + (f"{minutes}M" if minutes else "") + (f"{seconds}S" if rest else "")
    if not date and not time:
        return "PT0S"
    return f"P{date}T{time}" if time else f"P{date}"
