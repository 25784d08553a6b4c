"""What a caller asks for, and what it must look like. Pure: knows neither Django nor Celery."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from dispatcher.states import OnLimit


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
    meta: Mapping[str, Any] | None = field(default=None)
