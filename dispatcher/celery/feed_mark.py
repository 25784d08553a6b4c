"""The mark by which senders find an idle worker."""

from collections.abc import Sequence
from time import monotonic
from uuid import UUID

from dispatcher.lifecycle import wake


class IdleMark:
    """What a worker last wrote, in the database, of being idle."""

    def __init__(self, worker: UUID) -> None:
        """Have written nothing yet."""
        self.worker = worker
        self.reached: set[int] = set()
        """The keys for whose calls senders do not wake this worker, by its latest mark."""
        self._is_written = False
        self._until = 0.0

    def says(self, reached: set[int]) -> bool:
        """Whether senders know that this worker is idle, and for which calls it is not."""
        return self._is_written and reached == self.reached

    def write(self, queues: Sequence[str], reached: set[int], *, keep_s: float) -> bool:
        """Let senders to these queues know that this worker is idle; return whether there are calls for it by now."""
        has_lanes = wake.mark_idle(self.worker, queues, reached)
        self._is_written, self.reached, self._until = True, reached, monotonic() + keep_s
        return has_lanes

    def remove(self) -> None:
        """Let senders know that this worker is not idle any more."""
        if self._is_written:
            wake.mark_busy(self.worker)
            self._is_written = False

    def forget(self) -> None:
        """Know that it is written no more: the sender that has woken this worker removed it."""
        self._is_written = False

    def expire(self) -> None:
        """Have it written again once in a while: its row may be gone."""
        self._is_written = self._is_written and monotonic() < self._until
