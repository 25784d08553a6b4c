"""Finish: record how an attempt ended, if its ticket still owns the call, and give its slots back."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from dispatcher import ending, sql
from dispatcher.conf import conf
from dispatcher.ending import Ending, Reported
from dispatcher.limits.policy import BUCKETS
from dispatcher.models import CallQueue
from dispatcher.request import Changes
from dispatcher.signals import call_finished
from dispatcher.states import TERMINAL, State


@dataclass(frozen=True, kw_only=True)
class Released:
    """What ended, and whose room it gave back."""

    state: State
    lane_id: int
    keys: Sequence[int]
    wait: timedelta | None = None
    """Of a retryable call, the time until its next attempt."""


@dataclass(frozen=True, kw_only=True)
class _Freed:
    lane_id: int
    keys: list[int]


@dataclass(frozen=True, kw_only=True)
class _Finished(_Freed):
    state: str
    wait: timedelta | None


def complete(
    call_id: UUID, ticket: UUID, *, result: Any, claim_id: UUID | None = None, now: datetime | None = None
) -> Released | None:
    """Record success; None if the ticket was replaced. A result that is not JSON is kept as its repr.

    claim_id: the only claim whose attempt this may end; any, without one.
    """
    return _end(call_id, ticket, ending.completed(result), claim_id=claim_id, is_by_claim=True, now=now)


def fail(
    call_id: UUID,
    ticket: UUID,
    *,
    error: BaseException | Reported,
    attempt: int,
    policy: Mapping[str, Any] | None,
    wait: timedelta | None = None,
    may_retry: bool | None = None,
    crashes: int | None = 0,
    claim_id: UUID | None = None,
    is_by_claim: bool = False,
    now: datetime | None = None,
) -> Released | None:
    """Record a failed attempt: retryable while attempts are left, else discarded.

    crashes: how many attempts in a row, this one included, took their process with them; None if it is unknown whether
    this one would have.
    policy: the call's own retry policy; without one the task's word counts (`may_retry`), then the setting.
    wait: the time until the next attempt, 366 days at the most, if the task gave one; else the policy's back-off.
    claim_id: the only claim whose attempt this may end; any, without one. is_by_claim: that claim ends it itself.
    """
    decided = ending.failed(error, attempt=attempt, policy=policy, wait=wait, may_retry=may_retry, crashes=crashes)
    return _end(call_id, ticket, decided, claim_id=claim_id, is_by_claim=is_by_claim, now=now)


def terminate(
    call_id: UUID,
    ticket: UUID,
    *,
    error: BaseException,
    attempt: int,
    claim_id: UUID | None = None,
    now: datetime | None = None,
) -> Released | None:
    """End a call that was revoked and whose attempt was terminated, however many attempts it had left."""
    return _end(call_id, ticket, ending.terminated(error, attempt=attempt), claim_id=claim_id, now=now)


def amend(call_id: UUID, changes: Changes, *, now: datetime | None = None) -> bool:
    """Change what a retryable call is tried again with; False if the lane that it moves to is missing.

    The caller has ended its attempt in the same transaction.
    """
    return bool(sql.change("amend_call", {"call": call_id, **asdict(changes), "now": now}))


def put_back(
    call_id: UUID,
    ticket: UUID,
    *,
    from_states: Sequence[State],
    wait: timedelta | None = None,
    claim_id: UUID | None = None,
    is_by_claim: bool = False,
    is_lost: bool = False,
    now: datetime | None = None,
) -> Released | None:
    """Let the call wait again at the front of its lane, without spending an attempt; None if the ticket is gone.

    wait: not before this time has passed. claim_id: the only claim that may give an active call back; any, without one.
    is_by_claim: that claim itself ends its attempt. is_lost: whether it ran is not known; it counts as one more crash.
    The caller wakes the lane in the same transaction.
    """
    which = {"call": call_id, "ticket": ticket, "states": [*from_states], "claim": claim_id, "is_by_claim": is_by_claim}
    rows = sql.fetch("return_call", _Freed, {**which, "is_lost": is_lost, "wait": wait, "now": now})
    state = State.AVAILABLE if wait is None else State.SCHEDULED
    return Released(state=state, lane_id=rows[0].lane_id, keys=rows[0].keys) if rows else None


def record(
    call_id: UUID, ticket: UUID, ended: Ending, *, claim_id: UUID | None = None, now: datetime | None = None
) -> Released | None:
    """Record how the attempt of this claim ended, as its own process decided it; None if the ticket was replaced."""
    return _end(call_id, ticket, ended, claim_id=claim_id, is_by_claim=True, now=now)


def expire(call_id: UUID, ticket: UUID, *, now: datetime | None = None) -> Released | None:
    """Discard an admitted call that did not start in time; None if the ticket was replaced."""
    rows = sql.fetch("expire_call", _Freed, {"call": call_id, "ticket": ticket, "now": now})
    return Released(state=State.DISCARDED, lane_id=rows[0].lane_id, keys=rows[0].keys) if rows else None


def cancel(call_id: UUID, ticket: UUID, *, now: datetime | None = None) -> Released | None:
    """End a running call that was cancelled; None if the ticket was replaced. Its worker learns it when it reports."""
    return _end(call_id, ticket, Ending(state=State.CANCELLED), now=now)


def find(call_id: UUID, ticket: UUID, *, claim_id: UUID) -> Released | None:
    """Return what this claim has released by a finish whose answer was lost; None if it has not finished the call."""
    rows = sql.fetch("find_finished", _Finished, {"call": call_id, "ticket": ticket, "claim": claim_id})
    return (
        Released(state=State(rows[0].state), lane_id=rows[0].lane_id, keys=rows[0].keys, wait=rows[0].wait)
        if rows
        else None
    )


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A finish on its way."""

    call_id: UUID
    ended: Ending
    rows: Callable[[], Sequence[_Freed]]

    def released(self) -> Released | None:
        """Return what it released, and report it; after its trip. None if nothing was recorded, see `record`."""
        rows = self.rows()
        if not rows:
            return None
        _report(self.call_id, self.ended)
        return Released(state=self.ended.state, lane_id=rows[0].lane_id, keys=rows[0].keys, wait=self.ended.wait)


def ask(
    call_id: UUID,
    ticket: UUID,
    ended: Ending,
    *,
    claim_id: UUID | None = None,
    is_by_claim: bool = True,
    now: datetime | None = None,
) -> Asked:
    """Ask to record how an attempt ended, as `record` does, but for a claim that a crash of the database lost."""
    params = {
        "call": call_id,
        "ticket": ticket,
        "claim": claim_id,
        "is_by_claim": is_by_claim,
        "state": ended.state.value,
        "reason": ended.reason and ended.reason.value,
        "crashes": ended.crashes,
        "result": ended.result,
        "error": ended.error and json.dumps(ended.error),
        "retry_in": ended.wait,
        "terminal": list(TERMINAL),
        "now": now,
    }
    return Asked(call_id=call_id, ended=ended, rows=sql.ask("finish_call", _Freed, params).rows)


def _end(
    call_id: UUID,
    ticket: UUID,
    ended: Ending,
    *,
    claim_id: UUID | None = None,
    is_by_claim: bool = False,
    now: datetime | None = None,
) -> Released | None:
    end = partial(ask, call_id, ticket, ended, claim_id=claim_id, is_by_claim=is_by_claim, now=now)
    return end().released() or _restored(call_id, ticket, claim_id, end, now)


def _report(call_id: UUID, ended: Ending) -> None:
    """Send `call_finished` after the commit."""
    facts = {"call_id": call_id, "state": ended.state, "error": ended.error}
    sql.after_commit(partial(call_finished.send_robust, sender=CallQueue, **facts))


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The attempt of a claim, and how it ended."""

    call_id: UUID
    ticket: UUID
    claim_id: UUID
    """The claim's own."""
    ending: Ending
    keys: Collection[int] = ()
    """The keys that the call spends."""


@dataclass(frozen=True, kw_only=True)
class Freed:
    """The calls whose ends were recorded, and the keys whose room they gave back."""

    calls: list[UUID]
    keys: list[int]


def finish_many(ends: Sequence[Ended]) -> sql.Asked[Freed]:
    """Record how attempts ended, each if its ticket and claim still hold the call; ask inside of `together()`."""
    return sql.ask("finish_calls", Freed, params_of(ends))


def params_of(ends: Sequence[Ended]) -> dict[str, Any]:
    """Return how attempts ended as the statements take it."""
    return {
        "calls": [each.call_id for each in ends],
        "tickets": [each.ticket for each in ends],
        "claims": [each.claim_id for each in ends],
        "states": [each.ending.state.value for each in ends],
        "reasons": [each.ending.reason and each.ending.reason.value for each in ends],
        "crashes": [each.ending.crashes for each in ends],
        "results": [each.ending.result for each in ends],
        "errors": [each.ending.error and json.dumps(each.ending.error) for each in ends],
        "waits": [each.ending.wait for each in ends],
        "terminal": list(TERMINAL),
        "now": None,
    }


def report_many(ends: Sequence[Ended], recorded: Collection[UUID]) -> None:
    """Send `call_finished` for each of these ends that was recorded."""
    if call_finished.has_listeners(CallQueue):
        for each in ends:
            if each.call_id in recorded:
                _report(each.call_id, each.ending)


def _restored(
    call_id: UUID, ticket: UUID, claim_id: UUID | None, end: Callable[[], Asked], now: datetime | None
) -> Released | None:
    """End a call whose claim a crash of the database lost: record the claim first."""
    claim = {
        "call": call_id,
        "ticket": ticket,
        "claim": claim_id,
        "buckets": BUCKETS,
        "margin": conf().margin,
        "now": now,
    }
    with sql.atomic():
        return end().released() if sql.fetch("restore_claim", UUID, claim) else None
