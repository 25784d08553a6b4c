"""One attempt of a call: claimed in time, finished as it ended, or put back.

The parts of `engine.execute`, each composed of steps in `lifecycle`.
"""

import logging
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from time import monotonic, sleep
from typing import Any, TypeGuard, TypeVar, assert_never
from uuid import UUID
from weakref import WeakSet

from billiard.exceptions import SoftTimeLimitExceeded
from django.db import OperationalError

from dispatcher import ending, lanes, sql
from dispatcher.conf import conf
from dispatcher.ending import Ending
from dispatcher.engine import blocks, release
from dispatcher.engine.release import Release
from dispatcher.history import By
from dispatcher.lifecycle import admit, claim, control, finish, recover, run
from dispatcher.limits.policy import LONGEST_PERIOD
from dispatcher.models import CallQueue, Lane, RateLimitKey
from dispatcher.request import Changes
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
        self._released: list[Release] = []

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
        return bool(self._released)

    def claim_call(self) -> claim.Claimed | claim.Refused:
        """Claim the call; where the time was up before the task began, the claim counts as refused."""
        if self.interruption is not None and not self._has_begun:
            return self._claimed if isinstance(self._claimed, claim.Refused) else claim.Refused.INTERRUPTED
        if self._claimed is None:
            self._claimed = claim_in_time(self.call_id, self.ticket, claim_id=self.claim_id, worker=self.worker)
        return self._claimed

    def refuse(self, refused: claim.Refused) -> finish.Released | None:
        """Deal with a call that is not run; return what it released."""
        match refused:
            case claim.Refused.STALE:
                return None
            case claim.Refused.KEY_CLOSED | claim.Refused.TOO_EARLY | claim.Refused.BUSY | claim.Refused.INTERRUPTED:
                work = partial(put_back, self.call_id, self.ticket, claim_id=self.claim_id)
            case claim.Refused.EXPIRED:
                work = partial(finish.expire, self.call_id, self.ticket)
            case claim.Refused.REVOKED:
                work = partial(cancel, self.call_id)
            case _:
                assert_never(refused)
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

    def record(self, outcome: run.Outcome, claimed: claim.Claimed) -> Release:
        """Record the outcome, once; nothing is released if the call is another attempt's by now."""
        if not self._released:
            once = partial(finish_as, self.call_id, self.ticket, outcome, claimed)
            again = partial(_finish_again, once, self.call_id, self.ticket, self.claim_id)
            work = partial(self._finish, once, outcome, claimed) if self.interruption is None else again
            self._released.append(
                retry_while_unavailable(work, again=again, may_pass=lambda fault: not sql.is_refused(fault))
            )
        return self._released[0]

    def _finish(
        self, once: Callable[[], finish.Released | None], outcome: run.Outcome, claimed: claim.Claimed
    ) -> Release:
        """Record the outcome, and let the next call in where one statement records it."""
        if not (_is_one_statement(outcome) and release.is_possible()):
            return Release(released=once())
        ended = ending_of(outcome, claimed)
        done = release.finish_and_admit(self.call_id, self.ticket, ended, claim_id=claimed.claim_id)
        return done if done.released is not None else replace(done, released=once())


_fed: set[UUID] = set()
"""The claims of a feed whose tasks this very process runs."""


@contextmanager
def run_here(claim_id: UUID) -> Iterator[None]:
    """Know that this process runs the task of a claim that a feed has made."""
    _fed.add(claim_id)
    try:
        yield
    finally:
        _fed.discard(claim_id)


def running() -> frozenset[UUID]:
    """Return the claims whose attempts this process is running; those in processes of a pool are not among them."""
    return frozenset(each.claim_id for each in _attempts.copy() if not each.is_recorded) | _fed


def _finish_again(once: Callable[[], finish.Released | None], call_id: UUID, ticket: UUID, claim_id: UUID) -> Release:
    """Finish, though the first finish may have been committed and only its answer was lost."""
    return Release(released=once() or finish.find(call_id, ticket, claim_id=claim_id))


def claim_in_time(
    call_id: UUID, ticket: UUID, *, claim_id: UUID, worker: UUID | None = None
) -> claim.Claimed | claim.Refused:
    """Claim a call under this id and wait for its start; a start that was overslept is given up for a later one."""
    first = partial(claim.claim, call_id, ticket, claim_id=claim_id, worker=worker)
    restart = partial(claim.restart, call_id, ticket, claim_id=claim_id, worker=worker)
    again = partial(_claim_again, first, restart)
    claimed = retry_while_unavailable(partial(_claim_unchecked, first, again), again=again)
    while isinstance(claimed, claim.Claimed) and not claim.is_in_time(claimed):
        # Twice the lateness with every try: a machine that is always late starts calls all the same.
        later = partial(restart, slack=claimed.lateness + claimed.slack, missed=claimed.slack)
        claimed = retry_while_unavailable(later, again=later)
    return claimed


def retry_while_unavailable(
    work: Callable[[], T], *, again: Callable[[], T], may_pass: Callable[[BaseException], bool] = sql.is_unavailable
) -> T:
    """Do this; where the database is unavailable, do `again` what is left of it, for as long as `patience` lasts.

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
            if sql.in_transaction() or not may_pass(fault) or monotonic() + pause > until:
                raise
            logger.warning("the database is unavailable, trying again in %.1f s: %s", pause, fault)
        sql.discard_connection()
        sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 -- so that not all come back at once
        pause = min(2 * pause, _LONGEST_PAUSE_S)
        work = again


def _claim_unchecked(
    first: Callable[[], claim.Claimed | claim.Refused], again: Callable[[], claim.Claimed | claim.Refused]
) -> claim.Claimed | claim.Refused:
    """Claim; on a connection that was kept, that is its check, too: a broken one is replaced."""
    if not sql.skip_check():
        return first()
    try:
        return first()
    except sql.DATABASE_ERRORS as fault:
        if sql.interruption_of(fault) is not None or not sql.is_unavailable(fault):
            raise
        sql.discard_connection()
    return again()


def _claim_again(
    first: Callable[[], claim.Claimed | claim.Refused], restart: Callable[[], claim.Claimed | claim.Refused]
) -> claim.Claimed | claim.Refused:
    """Claim, though the first claim may have won and only its answer was lost."""
    claimed = first()
    return restart() if claimed is claim.Refused.STALE else claimed


def ending_of(outcome: run.Returned | run.Ignored | run.Failed, claimed: claim.Claimed) -> Ending:
    """Return the ending of a run."""
    match outcome:
        case run.Returned():
            return ending.completed(outcome.result)
        case run.Ignored():
            return ending.completed(None)
        case run.Failed():
            return ending.failed(
                outcome.error,
                attempt=claimed.attempt,
                policy=claimed.retry,
                wait=outcome.wait,
                may_retry=outcome.may_retry,
            )
        case _:
            assert_never(outcome)


def finish_as(call_id: UUID, ticket: UUID, outcome: run.Outcome, claimed: claim.Claimed) -> finish.Released | None:
    """Record the outcome of a run; return what was released, None if the ticket was replaced meanwhile."""
    if isinstance(outcome, run.Stopped):
        return stop(call_id, ticket, outcome, claim_id=claimed.claim_id)
    end = partial(finish.record, call_id, ticket, ending_of(outcome, claimed), claim_id=claimed.claim_id)
    if isinstance(outcome, run.Failed) and outcome.changes is not None:
        return fail_and_change(call_id, end, outcome.changes)
    return end()


def _is_one_statement(outcome: run.Outcome) -> TypeGuard[run.Returned | run.Ignored | run.Failed]:
    """Whether one statement records the outcome."""
    return isinstance(outcome, run.Returned | run.Ignored) or (
        isinstance(outcome, run.Failed) and outcome.changes is None
    )


def fail_and_change(
    call_id: UUID, fail: Callable[[], finish.Released | None], changes: Changes
) -> finish.Released | None:
    """Record a failure and what the next attempt is made with: both or neither; an ended call keeps what it had."""
    if changes.is_move:
        _open_lane(call_id, changes)
    with sql.atomic():
        released = fail()
        if released is not None and released.state is State.RETRYABLE and not finish.amend(call_id, changes):
            # Its lane was removed meanwhile.
            _open_lane(call_id, changes)
            finish.amend(call_id, changes)
    return released


def _open_lane(call_id: UUID, changes: Changes) -> None:
    """Make the lane that a call moves to, for the same keys, if it does not exist."""
    calls = CallQueue.objects.using(conf().database).filter(id=call_id)
    for lane in Lane.objects.using(conf().database).filter(id__in=calls.values("lane_id")):
        names = RateLimitKey.objects.using(conf().database).filter(id__in=lane.key_ids).values_list("name", flat=True)
        kind = lanes.Kind(
            queue=changes.queue if changes.queue is not None else lane.queue,
            priority=changes.priority if changes.priority is not None else lane.priority,
            on_limit=OnLimit(lane.on_limit),
            names=tuple(sorted(names)),
        )
        lanes.open_lanes({kind: 0}, lanes.missing_keys([kind], {}))


def stop(
    call_id: UUID, ticket: UUID, outcome: run.Stopped, *, claim_id: UUID | None = None, by: By | None = None
) -> finish.Released | None:
    """Let the call wait again and block the keys that the provider stopped: both or neither, so nothing slips through.

    For 366 days at the most. The lane is woken after the commit, so that a wait for a key that somebody keeps locked
    holds no lane. Where a key stays locked, the call waits by itself, and a thread blocks the keys when it can.
    claim_id: the only claim whose attempt this may end; any, without one. by: who reports it, for the history.
    """
    put_back = partial(
        finish.put_back,
        call_id,
        ticket,
        from_states=[State.DISPATCHED, State.ACTIVE],
        claim_id=claim_id,
        is_by_claim=True,
    )
    pause = min(outcome.wait, LONGEST_PERIOD)
    try:
        with sql.own_transaction(lock_wait=claim.LOCK_WAIT):
            spent = admit.keys_of(call_id)
            named = _key_to_block(outcome.key, spent)
            stopped = [*spent.stopped(named)]
            # A call that spends no key that could hold it back waits by itself.
            released = put_back(wait=None if stopped else pause)
            if released is not None:
                control.block(pause, keys=stopped, names=[named] if named else [], by=by)
    except OperationalError as fault:
        if sql.in_transaction() or not lanes.is_lock_timeout(fault):
            raise
        return _stop_later(call_id, put_back, pause, outcome.key, by=by)
    try:
        wake([released])
    except sql.DATABASE_ERRORS:
        # What is written stands; the sweep of the next tick wakes the lane.
        logger.exception("failed to wake the lane of call %s; the sweep will retry", call_id)
    return released


def _key_to_block(named: str | None, spent: admit.SpentKeys) -> str | None:
    """Return the key that a task names; None for those of the call: also where the named one does not exist."""
    if (
        named is None
        or named in spent.names.values()
        or RateLimitKey.objects.using(conf().database).filter(name=named).exists()
    ):
        return named
    logger.warning(
        "RateLimited names the key %r, which does not exist; the call's own keys are blocked instead: %s",
        named,
        ", ".join(sorted(spent.stopped(None).values())) or "it has none",
    )
    return None


def _stop_later(
    call_id: UUID,
    put_back: Callable[..., finish.Released | None],
    pause: timedelta,
    named: str | None,
    *,
    by: By | None,
) -> finish.Released | None:
    """Let the call wait by itself, and leave the block of the named key, or else of all of its keys, to a thread."""
    with sql.atomic():
        spent = admit.keys_of(call_id)
        key = _key_to_block(named, spent)
        names = {key} if key else set(spent.stopped(None).values())
        released = put_back(wait=pause)
    if released is not None and names:
        logger.warning(
            "call %s must stop for %s, but a transaction keeps a key locked; to be blocked when it ends: %s",
            call_id,
            pause,
            ", ".join(sorted(names)),
        )
        blocks.write_later(names, pause, by=by)
    return released


def put_back(
    call_id: UUID, ticket: UUID, *, claim_id: UUID | None = None, is_by_claim: bool = False
) -> finish.Released | None:
    """Let a call that was not started wait again; one that is claimed only for the claim of this id, if given.

    is_by_claim: that claim itself ends its attempt so.
    """
    states = [State.DISPATCHED, State.ACTIVE]
    with sql.atomic():
        released = finish.put_back(call_id, ticket, from_states=states, claim_id=claim_id, is_by_claim=is_by_claim)
        wake([released])
    return released


def cancel(call_id: UUID) -> finish.Released | None:
    """End a call that has not started; None if it has, or has ended."""
    done = control.cancel([call_id])
    return finish.Released(state=State.CANCELLED, lane_id=done.lanes[0], keys=done.keys) if done.calls else None


def wake(put_back: Iterable[finish.Released | None]) -> None:
    """Wake the lanes of calls that wait again, in the transaction that put them back; None is skipped."""
    if lanes := {released.lane_id for released in put_back if released and released.state is State.AVAILABLE}:
        recover.wake(lanes)


def settle(outcome: run.Outcome, released: finish.Released) -> run.Outcome:
    """Return the outcome with the wait that was recorded, so that Celery reports the same."""
    if isinstance(outcome, run.Failed):
        return run.Failed(error=outcome.error, wait=released.wait, may_retry=released.state not in TERMINAL)
    return outcome
