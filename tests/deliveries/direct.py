"""What the verbs do for direct delivery: the trips of a worker's processes."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from time import sleep
from uuid import UUID, uuid5

from dispatcher.ending import Ending, completed
from dispatcher.engine import attempt, direct, workers
from dispatcher.lifecycle import heartbeat, wake
from dispatcher.lifecycle.run import ending_of
from dispatcher.lifecycle.take import Notes, Start, Taken, Taker
from dispatcher.limits.turns import Turns
from dispatcher.models import Process
from tests import sessions
from tests.clock import Clock
from tests.deliveries.celery import Celery, outcome_of, worker_id
from tests.drive import TASK, Run

_TRIPS = 50
"""How many trips a worker makes before it waits; that it needs more is a fault."""
_AGAIN = timedelta(milliseconds=20)
"""How soon a worker comes again that has met a lock."""
_COMPLETED = completed(None)


class Direct(Celery):
    """Workers take calls from PostgreSQL."""

    delivery = "direct"

    def __init__(self, clock: Clock, queue: str) -> None:
        super().__init__(clock, queue)
        self.turns: dict[str, Turns] = defaultdict(Turns)
        """Which queue of a worker comes next."""
        self.notes: dict[str, Notes] = defaultdict(Notes)
        """Which notes a worker has not read."""
        self.locked: list[Run] = []
        """Those whose ends are brought again, since another transaction had locked their calls."""
        self.again_at: datetime | None = None
        """When the worker comes again that has met a lock."""

    def take(
        self, room: int = 1, *, ends: Sequence[Run] = (), worker: str = "one", queues: Sequence[str] | None = None
    ) -> list[Run]:
        self._come_again()
        taker = self._taker(worker, queues or [self.queue])
        # Only a worker that is alive is woken where it is its turn. What it knows counts with the trip.
        heartbeat.record(replace(self._worker(worker), id=taker.worker, queues=taker.queues, tasks=[]), [])
        begin_process(taker)
        starts: list[Start] = []
        ended = [*self.locked, *ends]
        for _ in range(_TRIPS):
            taken = self._trip(taker, ended, room=room - len(starts))
            starts, ended = [*starts, *taken.starts], []
            # Who has room left looks again, until a trip starts nothing, and marks it as idle.
            is_at_rest = not taken.starts and (taken.again_at is None or taken.again_at > taken.at)
            if is_at_rest or len(starts) == room:
                break
        else:
            message = "the trips of a worker find more to do, again and again"
            raise AssertionError(message)
        return [_run_of(each, worker) for each in starts]

    def end(self, run: Run, *, result: object = None, error: BaseException | None = None) -> bool:
        before = self.ticket(run)
        ending = ending_of(outcome_of(result, error), attempt=run.handle.attempt, policy=run.handle.retry)
        if not ending.is_plain:
            attempt.record(run.handle.ended(ending))
            return self.ticket(run) != before
        # Of another process than that which may be idle.
        taker = replace(self._taker(run.worker, [self.queue]), process=None)
        while (taken := self._trip(taker, [run], ending=ending)).locked:
            sleep(_AGAIN.total_seconds())
        return bool(taken.ended)

    def _trip(self, taker: Taker, ends: Sequence[Run], *, room: int = 0, ending: Ending = _COMPLETED) -> Taken:
        ended = [each.handle.ended(ending) for each in ends]
        is_marked = Process.objects.filter(id=taker.process, idle_at__isnull=False).exists()
        taken = direct.step(taker, ended, room=room, is_marked=is_marked, may_rest=room > 0)
        self.locked = [each for each in ends if each.call in taken.locked]
        self.again_at = taken.again_at if taken.again_at == taken.at + _AGAIN else None
        return taken

    def _come_again(self) -> None:
        """Let the moment pass after which a worker comes again that has met a lock."""
        if self.again_at is not None and self.again_at > self.clock.now:
            self.clock.forward((self.again_at - self.clock.now).total_seconds())

    def give_back(self, run: Run) -> bool:
        before = self.ticket(run)
        direct.give_back([(run.call, run.ticket)])
        return self.ticket(run) != before

    def _taker(self, worker: str, queues: Sequence[str]) -> Taker:
        turns = self.turns[worker]
        if len(queues) > 1:
            turns.set_weights(workers.direct_queues(queues))
        who = worker_id(self.site + worker)
        return Taker(
            worker=who, process=process_of(who), queues=queues, tasks=[TASK], turns=turns, notes=self.notes[worker]
        )


def process_of(worker: UUID) -> UUID:
    """Return the process of a worker that takes for all of its processes."""
    return uuid5(worker, "process")


def begin_process(taker: Taker) -> None:
    """Let a worker's process have a session, and serve the queues, as it does before its first trip."""
    assert taker.worker is not None
    assert taker.process is not None
    sessions.begin(taker.process)
    if not Process.objects.filter(id=taker.process, queues=list(taker.queues)).exists():
        wake.serve(taker.process, taker.worker, taker.queues)


def _run_of(start: Start, worker: str) -> Run:
    call = start.call
    return Run(
        call=call.id, ticket=call.ticket, attempt=start.attempt, start_at=start.start_at, worker=worker, handle=start
    )
