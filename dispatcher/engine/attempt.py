"""One attempt of a call: started in time, run, and ended; with a claim and the record of its end, or those of a trip.

Each is composed of steps in `lifecycle`.
"""

import json
import logging
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from time import monotonic, sleep
from typing import Any, TypeVar
from uuid import UUID, uuid4
from weakref import WeakSet

from billiard.exceptions import SoftTimeLimitExceeded

from dispatcher import lanes, sql
from dispatcher.conf import conf
from dispatcher.ending import Ending, InFlight
from dispatcher.engine import dispenser, ends, sent
from dispatcher.lifecycle import claim, finish, run
from dispatcher.lifecycle.claim import Claimed, Refused
from dispatcher.lifecycle.finish import Ended, Requeue
from dispatcher.models import CallQueue
from dispatcher.request import Changes
from dispatcher.sql import faults
from dispatcher.states import State

T = TypeVar("T")

logger = logging.getLogger(__name__)

_attempts: "WeakSet[Attempt]" = WeakSet()
"""What this very process runs: with greenlets and threads that is the worker's own process."""
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 3.0


def execute(
    call_id: UUID, ticket: UUID, task: Callable[[], Any], *, worker: UUID | None = None, claim_id: UUID | None = None
) -> run.Outcome | Refused | None:
    """Claim, run, and record the end, with which the next calls go; return how the attempt ended.

    worker: who claims. claim_id: the claim's own; a new one by default. Where the database is unavailable, claim and
    end are tried again for the setting's patience; an end after every error but one of its own data.
    Refused: nothing was run. None: it ran, but its ticket was replaced meanwhile, and the outcome was dropped.
    """
    this = Attempt(call_id, ticket, claim_id=claim_id or uuid4(), worker=worker)
    return this.to_its_end(partial(_execute, this, task))


def _execute(this: "Attempt", task: Callable[[], Any]) -> run.Outcome | Refused | None:
    claimed = this.claim_call()
    if isinstance(claimed, Refused):
        this.refuse(claimed)
        return claimed
    outcome = this.run_task(task)
    ended = this.record(outcome, claimed)
    return None if ended is None else run.settled(outcome, ended)


def is_held(call_id: UUID, ticket: UUID) -> bool:
    """Return whether this ticket still holds its call."""
    return CallQueue.objects.filter(id=call_id, ticket=ticket).exists()


def running() -> frozenset[UUID]:
    """Return the claims whose attempts this process is running; those in processes of a pool are not among them."""
    return frozenset(each.claim_id for each in _attempts.copy() if not each.is_recorded)


class Attempt:
    """One attempt of a call in its worker: started, run and ended, each once, whatever interrupts it.

    A soft time limit is raised by a signal's handler: at any line, and once. What was done until then is kept here, so
    that the same steps can be taken again, and go on where they were interrupted.
    """

    def __init__(
        self, call_id: UUID, ticket: UUID, *, claim_id: UUID, worker: UUID | None = None, start: Claimed | None = None
    ) -> None:
        """Name the call, and the claim by which this attempt is known; nothing is done yet.

        start: its start, where a trip has given it; otherwise the call is claimed.
        """
        self.call_id, self.ticket, self.claim_id, self.worker = call_id, ticket, claim_id, worker
        self.interruption: SoftTimeLimitExceeded | None = None
        """The soft time limit that has interrupted the steps, if one has."""
        self._start = start
        self._claimed: Claimed | Refused | None = None
        self._has_begun = False
        self._results: list[Any] = []
        self._outcomes: list[run.Outcome] = []
        self._ending: Ending | None = None
        self._recorded: list[bool] = []

    def to_its_end(self, steps: Callable[[], T]) -> T:
        """Take the steps; if a soft time limit interrupts them, take what is left of them again."""
        try:
            return self._noted(steps)
        except SoftTimeLimitExceeded as limit:
            self.interruption = limit
            return self._noted(steps)

    def _noted(self, steps: Callable[[], T]) -> T:
        """Take the steps as an attempt that runs; what they raise may keep it for long after that."""
        try:
            _attempts.add(self)
            return steps()
        finally:
            _attempts.discard(self)

    @property
    def is_recorded(self) -> bool:
        """Whether the end of the attempt is in the database."""
        return bool(self._recorded)

    def make(self, task: Callable[[], Any]) -> run.Outcome | Refused:
        """Claim the call, and run the task, once; return how it ended, or why it did not begin."""
        claimed = self.claim_call()
        return claimed if isinstance(claimed, Refused) else self.run_task(task)

    def claim_call(self) -> Claimed | Refused:
        """Claim the call; where the time was up before the task began, the claim counts as refused."""
        if self.interruption is not None and not self._has_begun:
            return self._claimed if isinstance(self._claimed, Refused) else Refused.INTERRUPTED
        if self._claimed is None:
            start = self._start or claim_or_wait(self.call_id, self.ticket, claim_id=self.claim_id, worker=self.worker)
            is_missed = isinstance(start, Claimed) and not claim.is_in_time(start)
            self._claimed = Refused.MISSED if is_missed else start
        return self._claimed

    def refuse(self, refused: Refused) -> bool:
        """Let a call that is not run wait again; what became of it meanwhile, its lane's next trip settles."""
        if refused is Refused.STALE:
            return False
        held = InFlight(call_id=self.call_id, ticket=self.ticket, claim=self.claim_id)
        work = partial(ends.requeue, [held], Requeue.UNUSED)
        return bool(retry_while_unavailable(work))

    def run_task(self, task: Callable[[], Any]) -> run.Outcome:
        """Run the task, once, and return how it ended."""
        if not self._has_begun:
            self._has_begun = True
            # In C, as in `run`: no handler of a signal runs before the outcome is kept.
            self._outcomes.extend(map(partial(run.run, results=self._results), [task]))
        if self._outcomes:
            return self._outcomes[0]
        if self._results:
            return run.Returned(result=self._results[0])
        # The interruption came as the task was called, or after it had raised.
        limit = self.interruption or SoftTimeLimitExceeded()
        return run.raised(limit.__context__ or limit)

    def record(self, outcome: run.Outcome, claimed: Claimed) -> Ending | None:
        """Record the outcome, once, and let the next calls go; None if the call is another attempt's by now."""
        if self._ending is None:
            self._ending = run.ending_of(outcome, attempt=claimed.attempt, policy=claimed.retry)
        ended = Ended(call_id=self.call_id, ticket=self.ticket, claim_id=self.claim_id, ending=self._ending)
        if not self._recorded:
            once = partial(record, ended, queue=claimed.queue)

            def again() -> bool:
                # The first try may have been committed, and only its answer was lost.
                return finish.is_recorded(ended) or once()

            work = once if self.interruption is None else again
            self._recorded.append(
                retry_while_unavailable(work, again=again, may_pass=lambda fault: not sql.is_refused(fault))
            )
        return ended.ending if self._recorded[0] else None


def claim_or_wait(call_id: UUID, ticket: UUID, *, claim_id: UUID, worker: UUID | None = None) -> Claimed | Refused:
    """Claim a call under this id; where the database is unavailable, for as long as `patience` lasts."""
    delay = claim.slack(is_cold=not sql.has_run("claim_call"))
    return retry_while_unavailable(partial(claim.claim, call_id, ticket, claim_id=claim_id, worker=worker, delay=delay))


def retry_while_unavailable(
    work: Callable[[], T],
    *,
    again: Callable[[], T] | None = None,
    may_pass: Callable[[BaseException], bool] = sql.is_unavailable,
) -> T:
    """Do this; where the database is unavailable, do `again` what is left of it, by default all, within `patience`.

    Where another transaction has locked what it needs, for as long as that goes on.
    may_pass: decides which errors are tried again. Each try has a new connection: the old one may lead to a server that
    is read-only by now. Raises the database's last error. Within a caller's transaction nothing can be tried again.
    """
    until = monotonic() + conf().patience.total_seconds()
    pause = _FIRST_PAUSE_S
    while True:
        try:
            return work()
        except sql.DATABASE_ERRORS as fault:
            if (interruption := sql.interruption_of(fault)) is not None:
                raise interruption from None
            is_locked = sql.is_locked(fault)
            if sql.in_transaction() or not may_pass(fault) or (monotonic() + pause > until and not is_locked):
                raise
            if not is_locked and not faults.report(fault):
                logger.warning("the database is unavailable, trying again in %.1f s: %s", pause, fault)
        if not is_locked:
            sql.discard_connection()
        sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 -- so that not all come back at once
        pause = min(2 * pause, _LONGEST_PAUSE_S)
        work = again or work


def record(ended: Ended, *, queue: str | None = None) -> bool:
    """Record how an attempt ended; return whether its ticket still held the call."""
    if ended.ending.changes is not None:
        return _end_and_change(ended, ended.ending.changes, queue=queue)
    if ended.ending.state is State.AVAILABLE:
        return ends.stop(ended)
    return ends.record_one(ended, queue=queue)


def _end_and_change(ended: Ended, changes: Changes, *, queue: str | None) -> bool:
    """Record an end and what the next attempt is made with: both or neither; an ended call keeps what it had."""
    call, ticket, wait = ended.call_id, ended.ticket, ended.ending.wait
    if changes.is_move and changes.placement is None:
        for row in CallQueue.objects.filter(id=call, ticket=ticket):
            kind = lanes.kind_of(row)
            kind = replace(kind, queue=changes.queue or kind.queue)
            placement = lanes.placement_of(kind, lanes.missing_keys([kind], {}), {})
            changes = replace(changes, placement=json.dumps(placement))
    with sql.own_transaction(lock_wait=finish.LOCK_WAIT):
        if ended.ending.state is not State.AVAILABLE:
            is_recorded = ends.record_one(ended, queue=queue, patience=timedelta(0))
        else:
            is_recorded = bool(finish.requeue(call, ticket, Requeue.STOPPED, claim_id=ended.claim_id, wait=wait))
        if is_recorded:
            sql.after_commit(dispenser.dispense_briefly)
            if finish.amend(call, changes):
                sent.after_commit([CallQueue(id=call, lane_id=None, state=State.AVAILABLE)])
    return is_recorded
