"""One attempt of a call: claimed in time, finished as it ended, or put back.

The parts of `engine.execute`, each composed of steps in `lifecycle`.
"""

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from time import monotonic, sleep
from typing import Any, TypeVar
from uuid import UUID
from weakref import WeakSet

from billiard.exceptions import SoftTimeLimitExceeded
from django.db import OperationalError

from dispatcher import ending, lanes, sql
from dispatcher.conf import conf
from dispatcher.ending import Ending
from dispatcher.engine import blocks, dispenser, ends
from dispatcher.history import By
from dispatcher.lifecycle import claim, control, finish, run
from dispatcher.lifecycle.finish import Ended, Requeue
from dispatcher.limits.policy import LONGEST_PERIOD
from dispatcher.models import CallQueue, Lane, RateLimitKey, Slot
from dispatcher.request import Changes
from dispatcher.sql import faults
from dispatcher.states import TERMINAL, OnLimit, State

T = TypeVar("T")

logger = logging.getLogger(__name__)

_attempts: "WeakSet[Attempt]" = WeakSet()
"""What this very process runs, and has not recorded: with greenlets and threads that is the worker's own process."""
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 3.0


class Attempt:
    """One attempt of a call in its worker: claimed, run and finished, each once, whatever interrupts it.

    A soft time limit is raised by a signal's handler: at any line, and once. What was done until then is kept here, so
    that the same steps can be taken again, and go on where they were interrupted.
    """

    def __init__(self, call_id: UUID, ticket: UUID, *, claim_id: UUID, worker: UUID | None) -> None:
        """Name the call, and the claim by which this attempt is known; nothing is done yet."""
        self.call_id, self.ticket, self.claim_id, self.worker = call_id, ticket, claim_id, worker
        self.interruption: SoftTimeLimitExceeded | None = None
        """The soft time limit that has interrupted the steps, if one has."""
        self._claimed: claim.Claimed | claim.Refused | None = None
        self._has_begun = False
        self._results: list[Any] = []
        self._outcomes: list[run.Outcome] = []
        self._ending: Ending | None = None
        self._recorded: list[bool] = []

    def to_its_end(self, steps: Callable[[], T]) -> T:
        """Take the steps; if a soft time limit interrupts them, take what is left of them again."""
        try:
            _attempts.add(self)
            return steps()
        except SoftTimeLimitExceeded as limit:
            self.interruption = limit
        return steps()

    @property
    def is_recorded(self) -> bool:
        """Whether the end of the attempt is in the database."""
        return bool(self._recorded)

    def claim_call(self) -> claim.Claimed | claim.Refused:
        """Claim the call; where the time was up before the task began, the claim counts as refused."""
        if self.interruption is not None and not self._has_begun:
            return self._claimed if isinstance(self._claimed, claim.Refused) else claim.Refused.INTERRUPTED
        if self._claimed is None:
            self._claimed = claim_in_time(self.call_id, self.ticket, claim_id=self.claim_id, worker=self.worker)
        return self._claimed

    def refuse(self, refused: claim.Refused) -> bool:
        """Let a call that is not run wait again; what became of it meanwhile, its lane's next trip settles."""
        if refused is claim.Refused.STALE:
            return False
        work = partial(put_back, self.call_id, self.ticket, claim_id=self.claim_id)
        return retry_while_unavailable(work, again=work)

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

    def record(self, outcome: run.Outcome, claimed: claim.Claimed) -> Ending | None:
        """Record the outcome, once, and let the next calls go; None if the call is another attempt's by now."""
        if self._ending is None:
            self._ending = ending_of(outcome, claimed)
        ended = Ended(call_id=self.call_id, ticket=self.ticket, claim_id=self.claim_id, ending=self._ending)
        if not self._recorded:
            once = partial(finish_as, ended, outcome, queue=claimed.queue)

            def again() -> bool:
                # The first try may have been committed, and only its answer was lost.
                return finish.is_recorded(ended) or once()

            work = once if self.interruption is None else again
            self._recorded.append(
                retry_while_unavailable(work, again=again, may_pass=lambda fault: not sql.is_refused(fault))
            )
        return ended.ending if self._recorded[0] else None


_direct: set[UUID] = set()
"""The claims of loops whose tasks this very process runs."""


@contextmanager
def run_here(claim_id: UUID) -> Iterator[None]:
    """Know that this process runs the task of a claim that a loop has made."""
    _direct.add(claim_id)
    try:
        yield
    finally:
        _direct.discard(claim_id)


def running() -> frozenset[UUID]:
    """Return the claims whose attempts this process is running; those in processes of a pool are not among them."""
    return frozenset(each.claim_id for each in _attempts.copy() if not each.is_recorded) | _direct


def claim_in_time(
    call_id: UUID, ticket: UUID, *, claim_id: UUID, worker: UUID | None = None
) -> claim.Claimed | claim.Refused:
    """Claim a call under this id and wait for its start; where that is missed, the call must wait again."""
    delay = claim.slack(is_cold=not sql.has_run("claim_call"))
    first = partial(claim.claim, call_id, ticket, claim_id=claim_id, worker=worker, delay=delay)
    claimed = retry_while_unavailable(partial(_claim_unchecked, first), again=first)
    return claim.Refused.MISSED if isinstance(claimed, claim.Claimed) and not claim.is_in_time(claimed) else claimed


def retry_while_unavailable(
    work: Callable[[], T], *, again: Callable[[], T], may_pass: Callable[[BaseException], bool] = sql.is_unavailable
) -> T:
    """Do this; where the database is unavailable, do `again` what is left of it, for as long as `patience` lasts.

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
        work = again


def _claim_unchecked(first: Callable[[], claim.Claimed | claim.Refused]) -> claim.Claimed | claim.Refused:
    """Claim; on a connection that was kept, that is its check, too: a broken one is replaced."""
    if not sql.skip_check():
        return first()
    try:
        return first()
    except sql.DATABASE_ERRORS as fault:
        if sql.interruption_of(fault) is not None or not sql.is_unavailable(fault):
            raise
        sql.discard_connection()
    return first()


def ending_of(outcome: run.Outcome, claimed: claim.Claimed) -> Ending:
    """Return the ending of a run; of one that its provider stopped, that its call waits again."""
    match outcome:
        case run.Returned():
            return ending.completed(outcome.stored)
        case run.Ignored():
            return ending.completed(None)
        case run.Stopped():
            return Ending(state=State.AVAILABLE, wait=outcome.wait)
        case run.Failed():
            return ending.failed(
                outcome.error,
                attempt=claimed.attempt,
                policy=claimed.retry,
                wait=outcome.wait,
                may_retry=outcome.may_retry,
            )


def finish_as(ended: Ended, outcome: run.Outcome, *, queue: str | None = None) -> bool:
    """Record the outcome of a run; return whether its ticket still held the call."""
    if isinstance(outcome, run.Stopped):
        return stop(ended.call_id, ended.ticket, outcome, claim_id=ended.claim_id)
    if isinstance(outcome, run.Failed) and outcome.changes is not None:
        return fail_and_change(ended, outcome.changes, queue=queue)
    return ends.record_one(ended, queue=queue)


def fail_and_change(ended: Ended, changes: Changes, *, queue: str | None = None) -> bool:
    """Record a failure and what the next attempt is made with: both or neither; an ended call keeps what it had."""
    if changes.is_move:
        _open_lane(ended.call_id, changes)
    with sql.own_transaction(lock_wait=finish.LOCK_WAIT):
        is_recorded = ends.record_one(ended, queue=queue, patience=timedelta(0))
        if is_recorded and ended.ending.state is State.RETRYABLE and not finish.amend(ended.call_id, changes):
            # Its lane was removed meanwhile.
            _open_lane(ended.call_id, changes)
            finish.amend(ended.call_id, changes)
    return is_recorded


def _open_lane(call_id: UUID, changes: Changes) -> None:
    """Make the lane that a call moves to, for the same keys, if it does not exist."""
    calls = CallQueue.objects.filter(id=call_id)
    for lane in Lane.objects.filter(id__in=calls.values("lane_id")):
        names = RateLimitKey.objects.filter(id__in=lane.key_ids).values_list("name", flat=True)
        kind = lanes.Kind(
            queue=changes.queue if changes.queue is not None else lane.queue,
            priority=changes.priority if changes.priority is not None else lane.priority,
            on_limit=OnLimit(lane.on_limit),
            names=tuple(sorted(names)),
        )
        lanes.open_lanes({kind: 0}, lanes.missing_keys([kind], {}))


@dataclass(frozen=True, kw_only=True)
class _Spent:
    """The keys that a call in flight spends, but not its groups."""

    names: dict[int, str]
    chosen: frozenset[str]
    """The names of those that were chosen of groups."""

    def stopped(self, named: str | None) -> dict[int, str]:
        """Return the keys that a provider stops: the named one; else those that were chosen, or all if none was.

        The provider refuses the account or address that the call used; the others of the group go on.
        """
        wanted = {named} if named is not None else self.chosen
        return {key: name for key, name in self.names.items() if not wanted or name in wanted}


def _spent_by(call_id: UUID) -> _Spent:
    held = Slot.objects.filter(call=call_id, key__isnull=False, key__is_group=False)
    rows = list(held.values_list("key_id", "key__name", "call__chosen_keys"))
    chosen = {name for _, _, keys in rows for name in (keys or {}).values()}
    return _Spent(names={key: name for key, name, _ in rows}, chosen=frozenset(chosen))


def stop(
    call_id: UUID, ticket: UUID, outcome: run.Stopped, *, claim_id: UUID | None = None, by: By | None = None
) -> bool:
    """Let the call wait again and block the keys that the provider stopped: both or neither, so nothing slips through.

    For 366 days at the most. Where a key stays locked, the call waits by itself, and a thread blocks the keys when it
    can. Return whether the ticket still held the call. claim_id: the only claim whose attempt this may end; any,
    without one. by: who reports it, for the history.
    """
    requeue = partial(finish.requeue, call_id, ticket, Requeue.STOPPED, claim_id=claim_id)
    pause = min(outcome.wait, LONGEST_PERIOD)
    try:
        with sql.own_transaction(lock_wait=finish.LOCK_WAIT):
            spent = _spent_by(call_id)
            named = _key_to_block(outcome.key, spent)
            stopped = [*spent.stopped(named)]
            # A call that spends no key that could hold it back waits by itself.
            requeued = requeue(wait=None if stopped else pause)
            if requeued is not None:
                control.block(pause, keys=stopped, names=[named] if named else [], by=by)
    except OperationalError as fault:
        if sql.in_transaction() or not sql.is_locked(fault):
            raise
        requeued = _stop_later(call_id, requeue, pause, outcome.key, by=by)
    if requeued is not None:
        sql.after_commit(dispenser.dispense_briefly)
    return requeued is not None


def _key_to_block(named: str | None, spent: _Spent) -> str | None:
    """Return the key that a task names; None for those of the call: also where the named one does not exist."""
    if named is None or named in spent.names.values() or RateLimitKey.objects.filter(name=named).exists():
        return named
    logger.warning(
        "RateLimited names the key %r, which does not exist; the call's own keys are blocked instead: %s",
        named,
        ", ".join(sorted(spent.stopped(None).values())) or "it has none",
    )
    return None


def _stop_later(
    call_id: UUID,
    requeue: Callable[..., finish.Requeued | None],
    pause: timedelta,
    named: str | None,
    *,
    by: By | None,
) -> finish.Requeued | None:
    """Let the call wait by itself, and leave the block of the named key, or else of all of its keys, to a thread."""
    with sql.own_transaction(lock_wait=finish.LOCK_WAIT):
        spent = _spent_by(call_id)
        key = _key_to_block(named, spent)
        names = {key} if key else set(spent.stopped(None).values())
        requeued = requeue(wait=pause)
    if requeued is not None and names:
        logger.warning(
            "call %s must stop for %s, but a transaction keeps a key locked; to be blocked when it ends: %s",
            call_id,
            pause,
            ", ".join(sorted(names)),
        )
        blocks.write_later(names, pause, by=by)
    return requeued


def put_back(call_id: UUID, ticket: UUID, *, claim_id: UUID | None = None, reason: Requeue = Requeue.UNUSED) -> bool:
    """Let a call in flight wait again without an end of its own, and let others go with its room.

    Return whether the ticket still held it. claim_id: the only claim of an active call that gives it back; any, without
    one.
    """
    with sql.own_transaction(lock_wait=finish.LOCK_WAIT):
        requeued = finish.requeue(call_id, ticket, reason, claim_id=claim_id)
    if requeued is not None:
        sql.after_commit(dispenser.dispense_briefly)
    return requeued is not None


def settle(outcome: run.Outcome, ended: Ending) -> run.Outcome:
    """Return the outcome with the wait that was recorded, so that Celery reports the same."""
    if isinstance(outcome, run.Failed):
        return run.Failed(error=outcome.error, wait=ended.wait, may_retry=ended.state not in TERMINAL)
    return outcome
