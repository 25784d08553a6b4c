"""What dead processes and lost answers leave behind: recorded, or given back, beside the keeper's thread."""

import logging
from collections.abc import Callable, Iterable
from functools import partial
from time import monotonic, sleep
from typing import Any, Final
from uuid import UUID

from billiard.exceptions import Terminated, WorkerLostError
from celery import Celery

from dispatcher import sql
from dispatcher.celery import failures, heartbeat, results
from dispatcher.ending import InFlight
from dispatcher.engine import direct, ends
from dispatcher.lifecycle import wake
from dispatcher.lifecycle.finish import Ended
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
        tickets, over = _tickets(held, unrecorded), {each.ticket for each in unrecorded}
        self._unsettled.update(tickets)
        lose: Callable[[], object] = partial(results.report_soon, app)
        if running is not None and running.ticket not in over:
            over.add(running.ticket)
            lose = self._loss_of(app, seat, running)

        def settle() -> None:
            _wait_for_session(process)
            if unrecorded:
                ends.record(unrecorded)
            lose()
            direct.give_back([each for each in held if each[1] not in over])
            wake.delete([process])
            self._unsettled.difference_update(tickets)
            self._give_back_lost()

        heartbeat.in_background(f"record what process {seat.pid} had", settle)

    def _loss_of(self, app: Celery, seat: Seat, running: Running) -> Callable[[], object]:
        """Return what ends the attempt that ran, and reports it; a termination is reported at once."""
        error: BaseException = WorkerLostError(f"process {seat.pid} of the pool has ended")
        if seat.reason is not None and running.ticket == seat.reason[0]:
            error = seat.reason[1]
        logger.error("%s: call %s[%s] was running", repr(error), running.task, running.call)
        task = app.tasks.get(running.task)
        facts: Any = {"hostname": self._options.hostname, "send_event": self._shared.sender(task, running.call)}
        if isinstance(error, Terminated) and task is not None:
            failures.revoke_soon(task, running.call, error, attempt=running.attempt, **facts)
        gone = InFlight(call_id=running.call, ticket=running.ticket, claim=running.ticket)
        return partial(failures.lose, app, gone, error, **facts)

    def _record(self, unrecorded: list[Ended]) -> None:
        ends.record(unrecorded)
        self._unsettled.difference_update(each.ticket for each in unrecorded)

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
