"""Finish: record how an attempt ended, if its ticket still owns the call, and give its slots back."""

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from django.core.serializers.json import DjangoJSONEncoder
from django.db import transaction

from dispatcher import sql
from dispatcher.conf import conf
from dispatcher.events import call_finished
from dispatcher.models import CallQueue
from dispatcher.policy import BUCKETS, Retry
from dispatcher.states import TERMINAL, State

_LONGEST_MESSAGE = 4_000
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
class _Freed:
    lane_id: int
    keys: list[int]


def complete(call_id: UUID, ticket: UUID, *, result: Any, now: datetime | None = None) -> Released | None:
    """Record success; None if the ticket was replaced. A result that is not JSON is kept as its repr."""
    return _end(call_id, ticket, State.COMPLETED, result=_json(result), now=now)


def fail(
    call_id: UUID,
    ticket: UUID,
    *,
    error: BaseException,
    attempt: int,
    policy: Mapping[str, Any] | None,
    wait: timedelta | None = None,
    may_retry: bool | None = None,
    now: datetime | None = None,
) -> Released | None:
    """Record a failed attempt: retryable while attempts are left, else discarded.

    policy: the call's own retry policy; without one the task's word counts (`may_retry`), then the setting.
    wait: the time until the next attempt, if the task gave one; else the policy's back-off.
    """
    retry = Retry.parse(policy if policy is not None else conf().retry)
    has_attempts = attempt < retry.max_attempts if policy is not None or may_retry is None else may_retry
    classes = {base.__name__ for base in type(error).__mro__}
    if may_retry is False or not has_attempts or classes.intersection(retry.non_retryable_errors):
        return _end(call_id, ticket, State.DISCARDED, error=_error(error, attempt), now=now)
    pause = wait if wait is not None else retry.delay(attempt, _random)
    return _end(call_id, ticket, State.RETRYABLE, error=_error(error, attempt), wait=pause, now=now)


def put_back(
    call_id: UUID, ticket: UUID, *, from_states: Sequence[State], wait: timedelta | None = None
) -> Released | None:
    """Let the call wait again at the front of its lane, without spending an attempt; None if the ticket is gone.

    wait: not before this time has passed. The caller wakes the lane in the same transaction.
    """
    params = {"call": call_id, "ticket": ticket, "states": list(from_states), "wait": wait}
    rows = sql.fetch("return_call", _Freed, params)
    state = State.AVAILABLE if wait is None else State.SCHEDULED
    return Released(state=state, lane_id=rows[0].lane_id, keys=rows[0].keys) if rows else None


def expire(call_id: UUID, ticket: UUID, *, now: datetime | None = None) -> Released | None:
    """Discard an admitted call that did not start in time; None if the ticket was replaced."""
    rows = sql.fetch("expire_call", _Freed, {"call": call_id, "ticket": ticket, "now": now})
    return Released(state=State.DISCARDED, lane_id=rows[0].lane_id, keys=rows[0].keys) if rows else None


def _end(
    call_id: UUID,
    ticket: UUID,
    state: State,
    *,
    result: str | None = None,
    error: dict[str, Any] | None = None,
    wait: timedelta | None = None,
    now: datetime | None = None,
) -> Released | None:
    rows = sql.fetch(
        "finish_call",
        _Freed,
        {
            "call": call_id,
            "ticket": ticket,
            "state": state.value,
            "result": result,
            "error": error and json.dumps(error),
            "retry_in": wait,
            "terminal": list(TERMINAL),
            "buckets": BUCKETS,
            "now": now,
        },
    )
    if not rows:
        return None
    tell = partial(call_finished.send_robust, sender=CallQueue, call_id=call_id, state=state, error=error)
    transaction.on_commit(tell, using=conf().database, robust=True)
    return Released(state=state, lane_id=rows[0].lane_id, keys=rows[0].keys, wait=wait)


def _error(error: BaseException, attempt: int) -> dict[str, Any]:
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
