"""What dead processes and lost answers leave behind: recorded, or given back, beside the keeper's thread."""

import logging
from collections.abc import Callable, Iterable
from functools import partial
from time import monotonic, sleep
from typing import Final
from uuid import UUID

from billiard.exceptions import Terminated, WorkerLostError
from celery import Celery

from dispatcher import sql
from dispatcher.celery import failures, heartbeat, results, revoke
from dispatcher.ending import InFlight
from dispatcher.engine import direct, ends
from dispatcher.lifecycle import wake
from dispatcher.lifecycle.finish import Ended
from dispatcher.models import CallQueue
from dispatcher.states import State
from dispatcher.worker.loop import Options
from dispatcher.worker.pool import Seat
from dispatcher.worker.shared import Place, Running, Shared, tickets_of

logger = logging.getLogger(__name__)

_SESSION_S: Final = 10.0
"""How long it waits until the session of a dead process is over."""
_NAP_S: Final = 0.02


class Deaths:
    """Deals with what the processes of one worker had. `places` returns those of the loops that there are."""

    def __init__(self, shared: Shared, options: Options, places: Callable[[], Iterable[Place]]) -> None:
        """Deal with nothing yet."""
        self._shared, self._options, self._places = shared, options, places
        self._unsettled: set[UUID] = set()
        """The tickets of dead processes, and of ends that loops have left, until they are dealt with: nothing else may
        give their calls back."""

    def record(self, seat: Seat) -> None:
        """Record the ends that a loop has left which it could not; its place may be used again after that."""
        if unrecorded := seat.place.ends:
            self._unsettled.update(each.ticket for each in unrecorded)
            heartbeat.in_background(f"record what process {seat.pid} had left", partial(self._record, unrecorded))

    def give_back_lost(self) -> None:
        """Give back what trips have started that no loop has: their answers were lost."""
        heartbeat.in_background("give back what lost answers had started", self._give_back_lost)

    def settle(self, app: Celery, seat: Seat, process: UUID) -> None:
        """Have what a dead process had recorded, or given back; its place may be used again after that."""
        running, held, unrecorded = seat.place.running, seat.place.held, seat.place.ends
        self._unsettled.update(_tickets(held, unrecorded))
        error: BaseException = WorkerLostError(f"process {seat.pid} of the pool has ended")
        if running is not None:
            if seat.reason is not None and running.ticket == seat.reason[0]:
                error = seat.reason[1]
            logger.error("%s: call %s[%s] was running", repr(error), running.task, running.call)
            self._report(app, running, error)

        def settle() -> None:
            self._settle(process, running, held, unrecorded, error)
            results.report_soon(app)
            if running is not None and not isinstance(error, Terminated):
                ended = CallQueue.objects.filter(id=running.call, attempt=running.attempt, state=State.DISCARDED)
                for call in ended.filter(error__type=type(error).__name__):
                    failures.report_soon(app, call, error, attempt=running.attempt, hostname=self._options.hostname)

        heartbeat.in_background(f"record what process {seat.pid} had", settle)

    def _report(self, app: Celery, running: Running, error: BaseException) -> None:
        """Report to monitors, and to receivers of a signal of Celery's, what the process itself could not."""
        if (task := app.tasks.get(running.task)) is None:
            return
        if self._shared.sends_events:
            self._shared.events.lost(task, running.call, error)
        if isinstance(error, Terminated):
            hostname = self._options.hostname
            failures.revoke_soon(task, running.call, error, attempt=running.attempt, hostname=hostname)

    def _record(self, unrecorded: list[Ended]) -> None:
        ends.record(unrecorded)
        self._unsettled.difference_update(each.ticket for each in unrecorded)

    def _settle(
        self,
        process: UUID,
        running: Running | None,
        held: list[tuple[UUID, UUID]],
        unrecorded: list[Ended],
        error: BaseException,
    ) -> None:
        _wait_for_session(process)
        if unrecorded:
            ends.record(unrecorded)
        if running is not None and all(each.ticket != running.ticket for each in unrecorded):
            is_crash = isinstance(error, WorkerLostError)
            gone = InFlight(call_id=running.call, ticket=running.ticket, claim=running.ticket)
            revoke.lose(gone, error, is_crash=is_crash)
        over = {each.ticket for each in unrecorded} | ({running.ticket} if running is not None else set())
        direct.give_back([each for each in held if each[1] not in over])
        wake.delete([process])
        self._unsettled.difference_update(_tickets(held, unrecorded))
        self._give_back_lost()

    def _give_back_lost(self) -> None:
        """Give back what trips have started that no loop has: their answers were lost."""
        started = direct.started(self._options.worker)
        known = tickets_of(self._places(), patience_s=1.0) if started else set()
        if known is None:
            self.give_back_lost()
            return
        # After those that loops have: a process that dies or leaves meanwhile is among these by now.
        known |= self._unsettled.copy()
        lost = [each for each in started if each[1] not in known]
        if lost:
            logger.warning("worker %s gives %d calls back: no process has them", self._options.hostname, len(lost))
            direct.give_back(lost)


def _tickets(held: Iterable[tuple[UUID, UUID]], unrecorded: Iterable[Ended]) -> set[UUID]:
    return {ticket for _, ticket in held} | {each.ticket for each in unrecorded}


def _wait_for_session(process: UUID) -> None:
    """Wait until nothing that a dead process has sent can commit any more."""
    until = monotonic() + _SESSION_S
    while not sql.fetch("session_is_over", bool, {"process": process})[0] and monotonic() < until:
        sleep(_NAP_S)
