"""What a call is tried again with, where that differs from before. Pure: checked texts and times."""

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, kw_only=True)
class Changes:
    """The fields of a call that a retry replaces; None keeps one as it is. Arguments are JSON texts."""

    args: str | None = None
    kwargs: str | None = None
    queue: str | None = None
    priority: int | None = None
    expires_at: datetime | None = None
    expires_in: timedelta | None = None
    """From the end of the attempt on, by the database's clock."""

    @property
    def is_move(self) -> bool:
        """Whether the call goes to another lane."""
        return self.queue is not None or self.priority is not None
