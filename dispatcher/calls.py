"""What a caller asks for, and what it must look like. Pure: knows neither Django nor Celery."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from dispatcher.states import OnLimit


@dataclass(frozen=True, kw_only=True)
class More:
    """What an Open Job Spec job may bring besides; checked by the face that takes it."""

    id: UUID | None = None
    timeout: timedelta | None = None
    visibility: timedelta | None = None
    unique_key: str | None = None
    envelope: Mapping[str, Any] | None = None
    is_pending: bool = False


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call for `CallQueue.objects.send_many`; the fields are those of `send`, and checked there."""

    task: Any = None
    args: Sequence[Any] | None = None
    kwargs: Mapping[str, Any] | None = None
    call_data: Mapping[str, Any] | None = None
    keys: Sequence[str] | Mapping[str, int] | None = None
    rate_limit: Mapping[str, Any] | None = None
    queue: str | None = None
    priority: int = 0
    scheduled_at: datetime | None = None
    expires_at: datetime | None = None
    on_limit: OnLimit | str | None = None
    retry: Mapping[str, Any] | None = None
    meta: Mapping[str, Any] | None = None
    more: More = More()
    """What only the HTTP face gives."""
