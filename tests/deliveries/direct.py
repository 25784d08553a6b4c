"""What the verbs do for direct delivery: the trips of a worker's feed."""

from collections import defaultdict
from collections.abc import Sequence

from dispatcher.celery import fed
from dispatcher.ending import Ending, completed
from dispatcher.engine import feed, workers
from dispatcher.lifecycle import wake
from dispatcher.lifecycle.run import Outcome
from dispatcher.lifecycle.take import Start, Taker
from dispatcher.limits.turns import Turns
from tests.clock import Clock
from tests.deliveries.celery import Celery, outcome_of, worker_id
from tests.drive import TASK, Run

_TRIPS = 50
"""How many trips a worker makes before it waits; that it needs more is a fault."""


class Direct(Celery):
    """Workers take calls from PostgreSQL."""

    delivery = "direct"

    def __init__(self, clock: Clock, queue: str) -> None:
        super().__init__(clock, queue)
        self.turns: dict[str, Turns] = defaultdict(Turns)
        """Which queue of a worker comes next."""

    def take(
        self, room: int = 1, *, ends: Sequence[Run] = (), worker: str = "one", queues: Sequence[str] | None = None
    ) -> list[Run]:
        taker = self._taker(worker, queues or [self.queue])
        ended = [each.handle.ended(completed(None)) for each in ends]
        starts: list[Start] = []
        for _ in range(_TRIPS):
            taken = feed.step(taker, ended, room=room - len(starts), is_marked=not starts)
            starts, ended = [*starts, *taken.starts], []
            if taken.again_at is None or taken.again_at > taken.at:
                break
        else:
            message = "the trips of a worker find more to do, again and again"
            raise AssertionError(message)
        wake.mark(taker.worker, taker.queues, is_idle=len(starts) < room)
        return [_run_of(each, worker) for each in starts]

    def end(self, run: Run, *, result: object = None, error: BaseException | None = None) -> bool:
        before = self.row(run)
        match _end_of(run, outcome_of(result, error)):
            case fed.PutOff(wait=wait, key=key):
                feed.put_off(run.handle, wait, key)
            case fed.Changed(ending=ending, changes=changes):
                feed.change(run.handle, ending, changes)
            case Ending() as ending:
                taker = self._taker(run.worker, [self.queue])
                return bool(feed.step(taker, [run.handle.ended(ending)], room=0).ended)
        return self.row(run).ticket != before.ticket

    def give_back(self, run: Run) -> bool:
        before = self.row(run)
        feed.give_back([(run.call, run.ticket)])
        return self.row(run).ticket != before.ticket

    def _taker(self, worker: str, queues: Sequence[str]) -> Taker:
        turns = self.turns[worker]
        if len(queues) > 1:
            turns.set_weights(workers.direct_queues(queues))
        return Taker(worker=worker_id(self.site + worker), queues=queues, tasks=[TASK], turns=turns)


def _run_of(start: Start, worker: str) -> Run:
    call = start.call
    return Run(
        call=call.id, ticket=call.ticket, attempt=start.attempt, start_at=start.start_at, worker=worker, handle=start
    )


def _end_of(run: Run, outcome: Outcome) -> fed.End:
    return fed.end_of(outcome, attempt=run.handle.attempt, policy=run.handle.retry)
