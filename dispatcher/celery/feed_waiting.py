"""How a feed waits: for an end, a notification, a due time; behind a transaction pooler it polls."""

import os
import select
from contextlib import suppress
from time import monotonic
from typing import Final
from uuid import UUID

from dispatcher import sql
from dispatcher.lifecycle import wake

_READ: Final = 4096
_SHORTEST_POLL_S: Final = 0.02
_LONGEST_POLL_S: Final = 1.0


class Waiting:
    """The waits of one feed."""

    def __init__(self, worker: UUID) -> None:
        """Wait for nothing yet."""
        self.worker = worker
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._descriptor: int | None = None
        self._poll = _SHORTEST_POLL_S
        self.is_woken = False
        """Whether this worker was woken, and counts as idle no more until it says so again; or it is time to poll."""

    def wake(self) -> None:
        """End the wait, from any thread."""
        with suppress(BlockingIOError, OSError):
            os.write(self._write, b"x")

    def listen(self) -> None:
        """Listen with the thread's connection, where it allows that."""
        self._descriptor = sql.listen(wake.channel(self.worker), self._note)

    def _note(self) -> None:
        self.is_woken = True

    def forget_connection(self) -> None:
        """Listen no more: the connection is gone."""
        self._descriptor = None

    @property
    def is_notified(self) -> bool:
        """Whether senders can wake this worker."""
        return self._descriptor is not None

    def rest(self) -> None:
        """Begin to poll often again."""
        self._poll = _SHORTEST_POLL_S

    def wait(self, due: float, *, is_idle: bool) -> None:
        """Wait for an end, a notification, or a due time (monotonic).

        is_idle: calls may come that this worker does not know of.
        """
        if self._descriptor is not None and sql.read_notifications():
            # One that came right behind the answer of a statement was read with it: the connection is not readable.
            self.is_woken = True
            return
        left = max(0.0, due - monotonic())
        if is_idle and not self.is_notified:
            left = min(left, self._poll)
            self._poll = min(2 * self._poll, _LONGEST_POLL_S)
        # Not select(), which knows no descriptor above 1023: a large pool has more pipes.
        poll = select.poll()
        for descriptor in (self._read, self._descriptor):
            if descriptor is not None:
                poll.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(left * 1_000)}
        if is_idle and not self.is_notified:
            self.is_woken = True
        if self._read in ready:
            self.clear()
        if self._descriptor in ready:
            self.is_woken |= sql.read_notifications() > 0

    def clear(self) -> None:
        """Forget the calls of `wake` until now: what they announced is looked at next."""
        with suppress(BlockingIOError):
            os.read(self._read, _READ)

    def close(self) -> None:
        """Wait no more."""
        os.close(self._read)
        os.close(self._write)
