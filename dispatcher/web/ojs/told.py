"""An event as the Open Job Spec writes it (ojs-events, section 2)."""

from collections.abc import Mapping
from datetime import datetime
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

from dispatcher.web.ojs.wire import stamp

_SOURCE: Final = "ojs://django-callqueue"


def event(kind: str, at: datetime, subject: str, told: Mapping[str, Any], *, mark: object = "") -> dict[str, Any]:
    """Return an event; its id is of the time and of what it tells, so the same event is told under the same id.

    mark: what tells it from another of its kind about the same subject.
    """
    digest = sha256(f"{subject} {kind} {mark}".encode()).hexdigest()
    number = f"{int(at.timestamp() * 1000):012x}7{digest[:3]}8{digest[3:18]}"
    return {
        "specversion": "1.0",
        "id": f"evt_{UUID(number)}",
        "type": kind,
        "source": _SOURCE,
        "time": stamp(at),
        "subject": subject,
        "datacontenttype": "application/json",
        "data": told,
    }


def milliseconds(since: datetime, until: datetime) -> int:
    """Return how long something took; never negative."""
    return max(0, round((until - since).total_seconds() * 1000))
