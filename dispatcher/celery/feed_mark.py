"""The mark by which senders find an idle worker."""

from collections.abc import Sequence
from time import monotonic
from uuid import UUID

from dispatcher.lifecycle import wake


class IdleMark:
    """What a worker last wrote, in the database, of the queues that it serves and of being idle."""

    def __init__(self, worker: UUID) -> None:
        """Have written nothing yet."""
        self.worker = worker
        self._written: tuple[list[str], bool] | None = None
        self._until = 0.0

    def says(self, queues: Sequence[str], *, is_idle: bool) -> bool:
        """Whether senders know that this worker serves these queues, and whether it is idle."""
        return self._written == ([*queues], is_idle) and monotonic() < self._until

    def write(self, queues: Sequence[str], *, is_idle: bool, keep_s: float) -> None:
        """Let senders know it; to be written again after a while: the row may be gone."""
        wake.mark(self.worker, queues, is_idle=is_idle)
        self._written, self._until = ([*queues], is_idle), monotonic() + keep_s

    def renew(self, *, keep_s: float) -> None:
        """Let senders know again that it is idle, if that is as long ago: before a look, which needs no other then."""
        if self._written is not None and self._written[1] and monotonic() >= self._until:
            self.write(self._written[0], is_idle=True, keep_s=keep_s)

    def note_woken(self) -> None:
        """Know that it says idle no more: who has woken this worker removed that."""
        if self._written is not None:
            self._written = self._written[0], False

    def forget(self) -> None:
        """Know nothing of what it says."""
        self._written = None
