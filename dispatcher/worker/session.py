"""The connection of a process's trips: apart from those of its tasks, and the one on which the process is notified."""

import logging
import os
import select
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from time import monotonic
from typing import Final
from uuid import UUID

import uuid_utils.compat as uuid7

from dispatcher import sql
from dispatcher.lifecycle import claim, wake
from dispatcher.sql import faults
from dispatcher.worker.shared import WakePipe

logger = logging.getLogger(__name__)

LOOK_S: Final = 1.0
"""How often an idle process looks, though it was not notified."""
_LOOKS_S: Final = (0.0, 0.02)
"""How soon a process that is marked as idle looks again: at once for what was sent before the mark was seen, and soon
for wake-ups that had looked for marks before it."""
_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 3.0
"""For how long a process rests after a trip that failed, at first and at the most."""
_FIRST_POLL_S: Final = 0.02
_LONGEST_POLL_S: Final = 1.0


class Session:
    """Opened at the first trip, and again after a cut; the id stays the process's."""

    def __init__(self, worker: UUID) -> None:
        """Open nothing yet."""
        self.worker: Final = worker
        self.process: Final[UUID] = uuid7.uuid7()
        self._wrapper = sql.new_connection()
        self._opened: object = None
        self._listening: int | None = None
        self._poll_s, self._pause_s, self._looks = _FIRST_POLL_S, _PAUSE_S, 0
        self.is_marked = False
        """Whether the process may be marked as idle."""
        self._is_woken = False
        self._is_cold = True
        self._wakes = WakePipe()
        self.interrupt: Final = self._wakes.wake
        """End a sleep, from any thread."""

    @contextmanager
    def used(self) -> Iterator[None]:
        """Make trips inside by this connection."""
        with sql.using(self._wrapper):
            yield
        self._pause_s = _PAUSE_S

    def open(self, queues: Sequence[str]) -> None:
        """Connect, and wait until an earlier session of this process is over: nothing that it sent can commit later.

        Behind a transaction pooler there are neither notifications nor locks of a session.
        """
        with self.used():
            sql.discard_connection()
            self._listening = sql.listen(wake.channel(self.process), self._note)
            if self._listening is not None:
                sql.change("lock_session", {"process": self.process})
            wake.serve(self.process, self.worker, queues)
            claim.sample()
        self._opened, self.is_marked, self._is_woken = self._wrapper.connection, False, False
        self._is_cold = True

    def drop(self) -> None:
        """Close after a failure."""
        with self.used():
            sql.discard_connection()

    def leave_to_parent(self) -> None:
        """Close the copy of the connection that a fork has made: else the session would outlive a parent that dies."""
        if (connection := self._wrapper.connection) is not None and not connection.closed:
            os.close(connection.fileno())

    def close(self) -> None:
        """Close in order: the process takes no calls any more."""
        if self.is_open:
            with self.used():
                wake.delete([self.process])
        self.drop()

    def unmark(self) -> None:
        """Take back that the process is idle."""
        if self.is_marked:
            with self.used():
                wake.unmark(self.process)
            self.is_marked = False

    @property
    def is_open(self) -> bool:
        """Whether it has the connection that it has opened: a statement that lost it may have made another one."""
        return self._opened is not None and self._wrapper.connection is self._opened

    @property
    def delay(self) -> timedelta:
        """How much later than its start a call may come here: see `Taker.delay`."""
        return claim.slack(is_cold=self._is_cold)

    @property
    def may_rest(self) -> bool:
        """Whether senders can wake this process."""
        return self._descriptor is not None

    @property
    def _descriptor(self) -> int | None:
        return self._listening if self.is_open else None

    def note_start(self) -> bool:
        """Note that a trip has started calls: it is not idle. Return whether it was woken meanwhile."""
        self.is_marked, self._is_cold, self._poll_s, self._looks = False, False, _FIRST_POLL_S, 0
        return self.take_woken()

    def sleep(self, until: float, leave: int | None = None) -> None:
        """Sleep until a monotonic time, a notification, an `interrupt`, or until `leave` can be read.

        A process that is not notified looks often at first, and then once a second.
        """
        descriptor = self._descriptor
        if descriptor is None:
            until = min(until, monotonic() + self._poll_s)
            self._poll_s = min(2 * self._poll_s, _LONGEST_POLL_S)
        if not self._take_notice():
            self._poll(until - monotonic(), *(each for each in (leave, descriptor) if each is not None))
        self._wakes.clear()
        self._take_notice()

    def look_s(self, *, is_marked: bool) -> float:
        """Return in how many seconds to look again after a trip that has started nothing.

        is_marked: whether the process was marked as idle before it.
        """
        if not self.may_rest:
            return LOOK_S
        self._looks = self._looks + 1 if is_marked else 0
        return _LOOKS_S[self._looks] if self._looks < len(_LOOKS_S) else LOOK_S

    def pause_after(self, fault: BaseException) -> None:
        """Log what a trip failed with, and sleep; for longer, the more trips in a row fail."""
        if not faults.report(fault):
            what = "waits for another transaction" if sql.is_locked(fault) else "is without its database"
            logger.warning("worker %s %s, again in %.1f s: %s", self.worker, what, self._pause_s, fault)
        self.sleep_for(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def sleep_for(self, seconds: float) -> None:
        """Sleep without a connection, until an `interrupt`."""
        self._poll(seconds)
        self._wakes.clear()

    def _poll(self, seconds: float, *descriptors: int) -> None:
        # Not select(), which knows no descriptor above 1023.
        poll = select.poll()
        for each in (self._wakes.descriptor, *descriptors):
            poll.register(each, select.POLLIN)
        poll.poll(max(0.0, seconds) * 1_000)

    def take_woken(self) -> bool:
        """Return whether a sender has woken this process since the last trip, and forget it."""
        is_woken, self._is_woken = self._take_notice(), False
        return is_woken

    def _take_notice(self) -> bool:
        # One that came right behind the answer of a statement was read with it: the connection is not readable.
        if self._descriptor is not None:
            self._is_woken |= sql.read_notifications(self._wrapper) > 0
        return self._is_woken

    def _note(self) -> None:
        self._is_woken = True
