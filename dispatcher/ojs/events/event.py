"""An event as the Open Job Spec writes it (ojs-events, section 2)."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

from dispatcher.ojs.wire import stamp

_SOURCE: Final = "ojs://django-callqueue"
_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_PREFIX: Final = "evt_"


def event(kind: str, at: datetime, subject: str, told: Mapping[str, Any], *, mark: object = "") -> dict[str, Any]:
    """Return an event; its id is of the time and of what it tells, so the same event is told under the same id.

    mark: what tells it from another of its kind about the same subject.
    """
    digest = sha256(f"{subject} {kind} {mark}".encode()).hexdigest()
    number = f"{_since_epoch(at):012x}7{digest[:3]}8{digest[3:18]}"
    return {
        "specversion": "1.0",
        "id": f"{_PREFIX}{UUID(number)}",
        "type": kind,
        "source": _SOURCE,
        "time": stamp(at),
        "subject": subject,
        "datacontenttype": "application/json",
        "data": told,
    }


def mark(at: datetime) -> str:
    """Return the lowest id of this millisecond: what was before has a lower one, and what comes has not."""
    return f"{_PREFIX}{UUID(f'{_since_epoch(at):012x}70008{0:015x}')}"


def moment(mark: str) -> datetime:
    """Return the millisecond of an id or a mark; the epoch for an empty one. Raises ValueError if it is neither."""
    if not mark:
        return _EPOCH
    number = mark.removeprefix(_PREFIX)
    if number == mark or str(UUID(number)) != number:
        message = f"{mark!r} is not the id of an event"
        raise ValueError(message)
    try:
        return _EPOCH + (UUID(number).int >> 80) * _MILLISECOND
    except OverflowError as error:
        raise ValueError(mark) from error


def _since_epoch(at: datetime) -> int:
    return (at - _EPOCH) // _MILLISECOND


def milliseconds(since: datetime, until: datetime) -> int:
    """Return how long something took; never negative."""
    return max(0, round((until - since).total_seconds() * 1000))
