"""Finish: record how an attempt ended, if its ticket still owns the call, and give its slots back."""

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from django.core.serializers.json import DjangoJSONEncoder

from dispatcher import sql
from dispatcher.conf import conf
from dispatcher.limits.policy import BUCKETS, LONGEST_PERIOD
from dispatcher.limits.retry import Retry
from dispatcher.models import CallQueue
from dispatcher.request import Changes
from dispatcher.signals import call_finished
from dispatcher.states import TERMINAL, Reason, State

_LONGEST_MESSAGE = 4_000
_MOST_CRASHES = 2**15 - 1
_UNSTORABLE = re.compile(r"(?<!\\)(?:\\\\)*\\u0000|[\ud800-\udfff]")
"""What jsonb can't hold: an escaped NUL (but not an escaped backslash before u0000), and a lone surrogate."""
_random = random.SystemRandom()


@dataclass(frozen=True, kw_only=True)
class Released:
    """What ended, and whose room it gave back."""

    state: State
    lane_id: int
    keys: Sequence[int]
    wait: timedelta | None = None
    """Of a retryable call, the time until its next attempt."""


@dataclass(frozen=True, kw_only=True)
class Reported:
    """A failure in the words of a worker in any language.

    type: its class, such as `auth.token_expired`; more: what else is to be kept of it, as JSON.
    """

    type: str
    message: str
    classes: Sequence[str] = ()
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Freed:
    lane_id: int
    keys: list[int]


@dataclass(frozen=True, kw_only=True)
class _Finished(_Freed):
    state: str
    wait: timedelta | None


def complete(
    call_id: UUID, ticket: UUID, *, result: Any, number: UUID | None = None, now: datetime | None = None
) -> Released | None:
    """Record success; None if the ticket was replaced. A result that is not JSON is kept as its repr.

    number: the only claim whose attempt this may end; any, without one.
    """
    return _end(call_id, ticket, State.COMPLETED, result=_json(result), crashes=0, number=number, is_own=True, now=now)


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
    number: UUID | None = None,
    is_own: bool = False,
    now: datetime | None = None,
) -> Released | None:
    """Record a failed attempt: retryable while attempts are left, else discarded.

    crashes: how many attempts in a row, this one included, took their process with them; None if it is unknown whether
    this one would have.
    policy: the call's own retry policy; without one the task's word counts (`may_retry`), then the setting.
    wait: the time until the next attempt, 366 days at the most, if the task gave one; else the policy's back-off.
    number: the only claim whose attempt this may end; any, without one. is_own: that claim ends it itself.
    """
    retry = Retry.parse(policy if policy is not None else conf().retry)
    has_attempts = attempt < retry.max_attempts if policy is not None or may_retry is None else may_retry
    classes = error.classes if isinstance(error, Reported) else [base.__name__ for base in type(error).__mro__]
    # What the column holds: the setting may ask for more.
    crashes = None if crashes is None else min(crashes, _MOST_CRASHES)
    what: dict[str, Any] = {"error": _error(error, attempt), "crashes": crashes, "now": now}
    what |= {"number": number, "is_own": is_own}
    if crashes and crashes >= conf().poison_after:
        return _end(call_id, ticket, State.DISCARDED, reason=Reason.POISON, **what)
    if may_retry is False or not has_attempts or any(map(retry.is_final, classes)):
        return _end(call_id, ticket, State.DISCARDED, reason=Reason.FAILED, **what)
    pause = retry.delay(attempt, _random) if wait is None else min(wait, LONGEST_PERIOD)
    return _end(call_id, ticket, State.RETRYABLE, wait=pause, **what)


def terminate(
    call_id: UUID,
    ticket: UUID,
    *,
    error: BaseException,
    attempt: int,
    number: UUID | None = None,
    now: datetime | None = None,
) -> Released | None:
    """End a call that was revoked and whose attempt was terminated, however many attempts it had left."""
    return _end(call_id, ticket, State.CANCELLED, error=_error(error, attempt), number=number, now=now)


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
    number: UUID | None = None,
    is_own: bool = False,
    is_lost: bool = False,
    now: datetime | None = None,
) -> Released | None:
    """Let the call wait again at the front of its lane, without spending an attempt; None if the ticket is gone.

    wait: not before this time has passed. number: the only claim that may give an active call back; any, without one.
    is_own: that claim itself ends its attempt so. is_lost: whether it ran is not known; it counts as one more crash.
    The caller wakes the lane in the same transaction.
    """
    which = {"call": call_id, "ticket": ticket, "states": list(from_states), "claim": number, "is_own": is_own}
    rows = sql.fetch("return_call", _Freed, {**which, "is_lost": is_lost, "wait": wait, "now": now})
    state = State.AVAILABLE if wait is None else State.SCHEDULED
    return Released(state=state, lane_id=rows[0].lane_id, keys=rows[0].keys) if rows else None


def expire(call_id: UUID, ticket: UUID, *, now: datetime | None = None) -> Released | None:
    """Discard an admitted call that did not start in time; None if the ticket was replaced."""
    rows = sql.fetch("expire_call", _Freed, {"call": call_id, "ticket": ticket, "now": now})
    return Released(state=State.DISCARDED, lane_id=rows[0].lane_id, keys=rows[0].keys) if rows else None


def cancel(call_id: UUID, ticket: UUID, *, now: datetime | None = None) -> Released | None:
    """End a running call that was cancelled; None if the ticket was replaced. Its worker learns it when it reports."""
    return _end(call_id, ticket, State.CANCELLED, now=now)


def find(call_id: UUID, ticket: UUID, *, number: UUID) -> Released | None:
    """Return what this claim has released by a finish whose answer was lost; None if it has not finished the call."""
    rows = sql.fetch("find_finished", _Finished, {"call": call_id, "ticket": ticket, "claim": number})
    return (
        Released(state=State(rows[0].state), lane_id=rows[0].lane_id, keys=rows[0].keys, wait=rows[0].wait)
        if rows
        else None
    )


def _end(
    call_id: UUID,
    ticket: UUID,
    state: State,
    *,
    result: str | None = None,
    error: dict[str, Any] | None = None,
    wait: timedelta | None = None,
    reason: Reason | None = None,
    crashes: int | None = None,
    number: UUID | None = None,
    is_own: bool = False,
    now: datetime | None = None,
) -> Released | None:
    end = partial(
        sql.fetch,
        "finish_call",
        _Freed,
        {
            "call": call_id,
            "ticket": ticket,
            "claim": number,
            "is_own": is_own,
            "state": state.value,
            "reason": reason and reason.value,
            "crashes": crashes,
            "result": result,
            "error": error and json.dumps(error),
            "retry_in": wait,
            "terminal": list(TERMINAL),
            "now": now,
        },
    )
    rows = end() or _restored(call_id, ticket, number, end, now)
    if not rows:
        return None
    sql.after_commit(partial(call_finished.send_robust, sender=CallQueue, call_id=call_id, state=state, error=error))
    return Released(state=state, lane_id=rows[0].lane_id, keys=rows[0].keys, wait=wait)


def _restored(
    call_id: UUID, ticket: UUID, number: UUID | None, end: Callable[[], list[_Freed]], now: datetime | None
) -> list[_Freed]:
    """End a call whose claim a crash of the database lost: record the claim first."""
    claim = {
        "call": call_id,
        "ticket": ticket,
        "claim": number,
        "buckets": BUCKETS,
        "margin": conf().margin,
        "now": now,
    }
    with sql.atomic():
        return end() if sql.fetch("restore_claim", UUID, claim) else []


def _error(error: BaseException | Reported, attempt: int) -> dict[str, Any]:
    if isinstance(error, Reported):
        return {**error.more, "type": error.type, "message": error.message[:_LONGEST_MESSAGE], "attempt": attempt}
    message = _words(error, str).replace("\0", "")[:_LONGEST_MESSAGE].encode("utf-8", "replace").decode()
    return {"type": type(error).__name__, "message": message, "attempt": attempt}


def _json(result: Any) -> str | None:
    """Write a result as JSON that jsonb can hold, or else its repr."""
    if result is None:
        return None
    try:
        text = json.dumps(result, cls=DjangoJSONEncoder, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = json.dumps(_words(result, repr), ensure_ascii=False)
    if _UNSTORABLE.search(text):
        text = json.dumps(_words(result, ascii).replace("\\x00", ""))
    size = len(text.encode())
    return text if size <= conf().max_payload_bytes else json.dumps(f"{size} bytes, not kept")


def _words(value: Any, write: Callable[[Any], str]) -> str:
    try:
        return write(value)
    except Exception:  # noqa: BLE001 -- the task's own code again, and its outcome is to be kept all the same
        return f"a {type(value).__name__} that can't be written"
