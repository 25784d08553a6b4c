"""The format of an event (ojs-events, section 2)."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

from dispatcher import validate
from dispatcher.ojs.wire import format_time

Event = dict[str, Any]

_SOURCE: Final = "ojs://django-callqueue"
_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_PREFIX: Final = "evt_"


def build_event(kind: str, at: datetime, subject: str, data: Mapping[str, Any], *, discriminator: object = "") -> Event:
    """Return an event. Its id is derived from the time and the other arguments, so each read gives the same id.

    discriminator: distinguishes events of one kind about the same subject.
    """
    digest = sha256(f"{subject} {kind} {discriminator}".encode()).hexdigest()
    # The 12 bits after the version hold the part of the millisecond (RFC 9562, section 6.2): a trip has several events.
    part = at.microsecond % 1_000 * 4_096 // 1_000
    number = f"{_since_epoch(at):012x}7{part:03x}8{digest[:15]}"
    return {
        "specversion": "1.0",
        "id": f"{_PREFIX}{UUID(number)}",
        "type": kind,
        "source": _SOURCE,
        "time": format_time(at),
        "subject": subject,
        "datacontenttype": "application/json",
        "data": data,
    }


def cursor_at(at: datetime) -> str:
    """Return the lowest id of this millisecond: earlier events have lower ids, later ones have higher ids."""
    return f"{_PREFIX}{UUID(f'{_since_epoch(at):012x}70008{0:015x}')}"


def time_of(cursor: str) -> datetime:
    """Return the time of an event id or a cursor; the epoch for an empty one. Raises ValueError for other text."""
    if not cursor:
        return _EPOCH
    number = cursor.removeprefix(_PREFIX)
    if number == cursor or str(UUID(number)) != number:
        message = f"{cursor!r} is not the id of an event"
        raise ValueError(message)
    try:
        at = validate.moment("cursor", _EPOCH + (UUID(number).int >> 80) * _MILLISECOND)
    except OverflowError as error:
        raise ValueError(cursor) from error
    return at or _EPOCH


def _since_epoch(at: datetime) -> int:
    return (at - _EPOCH) // _MILLISECOND


def duration_ms(since: datetime, until: datetime) -> int:
    """Return the duration in milliseconds; never negative."""
    return max(0, round((until - since).total_seconds() * 1000))
