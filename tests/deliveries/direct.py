"""What the verbs do for direct delivery: the steps of a worker's feed."""

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dispatcher.engine import attempt, fed, feed, workers
from dispatcher.lifecycle.run import Failed, Returned, Stopped
from dispatcher.limits.turns import Turns
from dispatcher.request import Changes
from tests.clock import Clock
from tests.deliveries.celery import Celery, outcome_of, run_of, worker_id
from tests.drive import TASK, Run

if TYPE_CHECKING:
    from datetime import datetime

_STEPS = 50
"""How many steps a worker makes before it waits; that it needs more is a fault."""


class Direct(Celery):
    """Workers take calls from PostgreSQL."""

    delivery = "direct"

    def __init__(self, clock: Clock, queue: str) -> None:
        super().__init__(clock, queue)
        self.openings: dict[int, datetime] = {}
        """When the feed looks at keys again."""
        self.has_left = False
        """Whether a step has left lanes to a general one."""
        self.turns: dict[str, Turns] = defaultdict(Turns)
        """Which queue of a worker comes next."""

    def take(
        self, room: int = 1, *, ends: Sequence[Run] = (), worker: str = "one", queues: Sequence[str] | None = None
    ) -> list[Run]:
        taker = self._taker(worker, queues or [self.queue])
        ended = [_end_of(each, Returned(result=None)) for each in ends]
        keys = self._due()
        if len(ends) == 1 and ends[0].handle.is_followed and room > 0 and not (keys or self.has_left):
            step = feed.hand_over(taker, ended[0], room=room)
        else:
            step = feed.step(taker, ended, room=room, keys=keys, is_general=self.has_left)
        starts = [*step.starts]
        reached, refilled, stuck = {*step.reached}, set[int](), set[int]()
        for _ in range(_STEPS):
            self.has_left = step.has_left
            self.openings |= {**step.openings, **dict.fromkeys(step.open_keys, self.clock.now)}
            if len(starts) >= room:
                break
            keys = self._due()
            # A lane that is refilled again and again, and starts nothing: another transaction has its calls locked.
            has_new = bool(step.refilled) and (bool(step.starts) or not refilled.issuperset(step.refilled))
            refilled = {*step.refilled}
            # Lanes whose key stays locked for a moment delay no others any more.
            is_stuck, stuck = not stuck.issuperset(step.busy), stuck.union(step.busy)
            if not (step.has_moved or has_new or step.has_left or keys or is_stuck):
                break
            left, is_general = room - len(starts), step.has_left
            step = feed.step(
                taker, room=left, keys=keys, reached=reached, avoid=stuck, stuck=stuck, is_general=is_general
            )
            starts += step.starts
            reached |= {*step.reached}
        else:
            message = "the steps of a worker find more to do, again and again"
            raise AssertionError(message)
        return [run_of(each.call.id, each.call.ticket, each.claimed, worker, handle=each) for each in starts]

    def end(self, run: Run, *, result: object = None, error: BaseException | None = None) -> bool:
        before, outcome = self.row(run), outcome_of(result, error)
        match outcome:
            case Stopped():
                fed.put_off(run.handle, outcome.wait, outcome.key)
            case Failed(changes=Changes() as changes):
                fed.change(run.handle, attempt.ending_of(outcome, run.handle.claimed), changes)
            case _:
                return bool(feed.step(self._taker(run.worker, []), [_end_of(run, outcome)], room=0).recorded)
        return self.row(run).ticket != before.ticket

    def give_back(self, run: Run) -> bool:
        before = self.row(run)
        fed.give_back([run.handle.handle])
        return self.row(run).ticket != before.ticket

    def _due(self) -> set[int]:
        due = {key for key, at in self.openings.items() if at <= self.clock.now}
        self.openings = {key: at for key, at in self.openings.items() if key not in due}
        return due

    def _taker(self, worker: str, queues: Sequence[str]) -> feed.Taker:
        turns = self.turns[worker]
        if len(queues) > 1:
            turns.set_weights(workers.direct_queues(queues))
        return feed.Taker(worker=worker_id(worker), queues=queues, tasks=[TASK], turns=turns)


def _end_of(of: Run, outcome: Any) -> Any:
    start = of.handle
    return start.ended(attempt.ending_of(outcome, start.claimed))
