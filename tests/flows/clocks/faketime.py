"""Processes whose system clock is wrong: libfaketime's part of their environment, and what shows that it works."""

import re
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from project.processes import Child

HOUR = timedelta(hours=1)
_SITE = Path(__file__).with_name("site")
_PLACES = ("/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib*/faketime/libfaketime.so.1")
_LOGGED_AT = re.compile(r"^\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),", re.MULTILINE)


def off(by: timedelta) -> dict[str, str]:
    """Return the environment of a process whose system clock is off by so much.

    The monotonic clock goes on as it does: a system clock that is set wrongly does not touch it.
    """
    return {
        "LD_PRELOAD": str(library()),
        "FAKETIME": f"{by.total_seconds():+.0f}s",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
        "PYTHONPATH": str(_SITE),
    }


def library() -> Path:
    """Return where libfaketime is; without it the tests fail, and say how to install it."""
    found = [path for pattern in _PLACES for path in Path("/").glob(pattern.lstrip("/"))]
    if not found:
        pytest.fail("libfaketime is missing. Install it: apt-get install libfaketime", pytrace=False)
    return found[0]


def clock_of(child: Child) -> timedelta:
    """Return how far off a Celery process's clock was when it wrote its last line, to half an hour."""
    said = datetime.fromisoformat(_LOGGED_AT.findall(child.output())[-1])
    wrote_at = datetime.fromtimestamp(child.log.stat().st_mtime)  # noqa: DTZ006 -- the log has local time
    return round((said - wrote_at) / (HOUR / 2)) * (HOUR / 2)
