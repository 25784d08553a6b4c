"""What a caller asks for: a call, and what a retry changes of it. Pure: knows neither Django nor Celery."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from dispatcher.errors import CallInvalid
from dispatcher.states import OnLimit
from dispatcher.validate import only_named

_IN = "or give task.s(...).set({}=...) in place of the task."
REMEDIES: Final = {
    "countdown": "give scheduled_at=, a time with a zone; " + _IN.format("countdown"),
    "eta": "give scheduled_at=, a time with a zone; " + _IN.format("eta"),
    "expires": "give expires_at=, a time with a zone; " + _IN.format("expires"),
    "key": 'give keys=["name"].',
    "task_id": "the id is made at the send; read call.id.",
    "max_retries": 'give retry={"max_attempts": 5}.',
    "routing_key": "give queue=.",
    "exchange": "give queue=.",
}
"""What to give in place of Celery's options that `send` does not have."""


@dataclass(frozen=True, kw_only=True)
class Extras:
    """What another app of the dispatcher gives a call that it sends; a subclass has what the app stores beside it."""

    id: UUID | None = None
    is_pending: bool = False
    is_celerys: bool = False
    """Whether `Celery.send_task` sends it: what has expired is not refused, but discarded, as there."""
    sender: str | None = None
    """Who sends it, for the history of the keys that it makes."""

    @property
    def is_stored(self) -> bool:
        """Whether the app stores anything of it, in the transaction that writes the call."""
        return False

    def text(self) -> str | None:
        """Return what counts as a part of the call's size, as JSON; None if nothing. Raises CallInvalid."""
        return None


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call for `CallQueue.objects.send_many`; the fields are those of `send`, and checked there."""

    task: Any = field(default=None, kw_only=False)
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
    headers: Mapping[str, Any] | None = None
    outside: bool = False
    extras: Extras | None = None
    """What only another app of the dispatcher gives it."""


Call.__init__ = only_named(CallInvalid, REMEDIES)(Call.__init__)  # type: ignore[method-assign]


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What the next attempt is made with, where a retry or `self.replace` names it; None keeps a field as it is.

    JSON is text.
    """

    args: str | None = None
    kwargs: str | None = None
    queue: str | None = None
    priority: int | None = None
    expires_at: datetime | None = None
    expires_in: timedelta | None = None
    """From the end of the attempt on, by the database's clock."""

    task: str | None = None
    """With another task the fields below are that one's, with or without a value; so is when the call expires."""
    headers: str | None = None
    options: str | None = None
    costs: str = "{}"
    placement: str | None = None
    """What makes the keys and the lane of the call; None: it spends the same keys."""
    retry: str | None = None

    @property
    def is_move(self) -> bool:
        """Whether the call goes to another lane."""
        return self.queue is not None or self.priority is not None or self.placement is not None
