"""The publisher, a thread of a worker's main process: it dispatches the calls of the worker's broker queues.

A sender wakes it as it wakes a process that takes calls by itself. Where as many calls are on their way as the workers
of a queue have processes, the ends of these let the next ones go, and it sleeps.
"""

import logging
import os
from collections.abc import Sequence
from threading import Thread
from time import monotonic
from typing import Final
from uuid import UUID

from dispatcher import sql
from dispatcher.conf import conf
from dispatcher.lifecycle import publish, take, wake
from dispatcher.lifecycle.take import Notes, Taker
from dispatcher.states import State
from dispatcher.worker.session import LOOK_S, Session

logger = logging.getLogger(__name__)

_GATHER_S: Final = 0.003
"""How long it waits after a trip that has dispatched calls: in a stream each trip takes several."""
_REST_S: Final = 60.0
"""How long it sleeps without queues; it is woken where it gets some."""
_LAST_S: Final = 5.0
"""For how long its end is waited for at the most."""


class Publisher:
    """Publishes the calls of the broker queues of one worker."""

    def __init__(self, worker: UUID) -> None:
        """Serve no queue yet."""
        self._session = Session(worker)
        self._queues: list[str] = []
        self._marked: list[str] = []
        """Those that its mark names."""
        self._notes = Notes()
        self._is_over = False
        self._thread = Thread(target=self._run, name="dispatcher-publisher", daemon=True)
        # The pool's processes would hold its lock, and it would count as alive, as long as one of them runs a call.
        os.register_at_fork(after_in_child=self._session.leave_to_parent)

    def start(self) -> None:
        """Start the thread; with gevent a greenlet beside the tasks, whose ends publish on the same connections."""
        self._thread.start()

    def serve(self, queues: Sequence[str]) -> None:
        """Serve these queues from now on, in any thread."""
        if queues != self._queues:
            self._queues = [*queues]
            self._session.interrupt()

    def close(self) -> None:
        """Serve no queue any more."""
        self._is_over = True
        self._session.interrupt()

    def join(self) -> None:
        """Wait a bounded time until the thread has ended."""
        self._thread.join(_LAST_S)

    def _run(self) -> None:
        session = self._session
        while not self._is_over:
            try:
                if self._queues:
                    with session.used():
                        self._step()
                else:
                    session.close()
                    session.sleep_for(_REST_S)
            except sql.DATABASE_ERRORS as fault:
                if not sql.is_locked(fault):
                    session.drop()
                session.pause_after(fault)
            except Exception:
                logger.exception("worker %s could not publish calls, and goes on", session.worker)
                session.drop()
                session.sleep_for(LOOK_S)
        try:
            session.close()
        except sql.DATABASE_ERRORS as fault:
            logger.warning("worker %s could not unmark its publisher: %s", session.worker, fault)
            session.drop()

    def _step(self) -> None:
        """Make one trip, publish what it has dispatched, and sleep until another one may find something."""
        session, queues, batch = self._session, self._queues, conf().batch
        if not session.is_open:
            session.open(queues)
        is_woken = session.take_woken()
        is_marked = session.is_marked and not is_woken and queues == self._marked
        if not (is_marked or is_woken):
            # The row that the trip may mark: it was deleted if the worker counted as lost.
            wake.serve(session.process, session.worker, queues)
        taker = Taker(process=session.process, queues=queues, becomes=State.DISPATCHED, notes=self._notes)
        taken = take.take(taker, room=batch, publish=batch, is_marked=is_marked, may_rest=session.may_rest)
        publish.publish(taken.dispatched)
        if others := set(taken.publish).difference(queues):
            wake.ask(queues=others)
        if taken.dispatched:
            session.note_start()
            session.sleep_for(_GATHER_S)
            return
        session.is_marked = session.may_rest and (is_marked or not taken.has_more)
        self._marked = queues
        wait_s = session.look_s(is_marked=is_marked)
        if taken.again_at is not None:
            wait_s = min(wait_s, (taken.again_at - taken.at).total_seconds())
        if wait_s > 0:
            session.sleep(monotonic() + wait_s)
