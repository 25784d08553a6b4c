"""Endings: how an attempt ends, decided without a database: by the process that ran it, or by who lost it."""

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.core.serializers.json import DjangoJSONEncoder

from dispatcher.conf import conf
from dispatcher.limits.policy import LONGEST_PERIOD
from dispatcher.limits.retry import Retry
from dispatcher.request import Changes
from dispatcher.states import Reason, State

_LONGEST_MESSAGE = 4_000
_MOST_CRASHES = 2**15 - 1
_UNSTORABLE = re.compile(r"(?<!\\)(?:\\\\)*\\u0000|[\ud800-\udfff]")
"""What jsonb can't hold: an escaped NUL (but not an escaped backslash before u0000), and a lone surrogate."""
_random = random.SystemRandom()


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
class Ending:
    """How an attempt ends: the state that follows, and what the row keeps of it; JSON as text."""

    state: State
    result: str | None = None
    error: dict[str, Any] | None = None
    wait: timedelta | None = None
    """Until the next attempt of a retryable call; of one that waits again, until its provider may be asked again."""
    reason: Reason | None = None
    crashes: int | None = None
    """How many attempts in a row have ended their process; None leaves the count as it is."""
    key: str | None = None
    """Of a call that waits again, the key that its provider stops; None: those that it spends."""
    changes: Changes | None = None
    """What the next attempt is made with."""

    @property
    def next_state(self) -> State:
        """Its call's: one that is tried again without a wait is available at once, unless the attempt changes it."""
        is_due = self.wait is not None and self.wait <= timedelta(0)
        return State.AVAILABLE if is_due and self.state is State.RETRYABLE and self.changes is None else self.state

    @property
    def is_plain(self) -> bool:
        """Whether a trip records it, together with others: it neither stops keys nor changes the call."""
        return not self.is_stop and self.changes is None

    @property
    def is_stop(self) -> bool:
        """Whether its provider said stop, which blocks keys."""
        return self.state is State.AVAILABLE and self.changes is None


@dataclass(frozen=True, kw_only=True)
class InFlight:
    """A call in flight, by its ticket."""

    call_id: UUID
    ticket: UUID
    claim: UUID | None = None
    """The claim of the attempt that is meant; None: any, or it has not started."""


def completed(result: Any) -> Ending:
    """Return the ending of an attempt that succeeded. A result that is not JSON is kept as its repr."""
    return Ending(state=State.COMPLETED, result=_json(result), crashes=0)


def failed(
    error: BaseException | Reported,
    *,
    attempt: int,
    policy: Mapping[str, Any] | None,
    wait: timedelta | None = None,
    may_retry: bool | None = None,
    crashes: int | None = 0,
) -> Ending:
    """Return the ending of a failed attempt: retryable while attempts are left, else discarded.

    crashes, policy, wait, may_retry: see lifecycle.finish.fail.
    """
    retry = Retry.parse(policy if policy is not None else conf().retry)
    has_attempts = attempt < retry.max_attempts
    if retry.decided_by == "task":
        has_attempts = bool(may_retry) or bool(crashes and has_attempts)
    elif policy is None and may_retry is not None:
        has_attempts = may_retry
    classes = error.classes if isinstance(error, Reported) else [base.__name__ for base in type(error).__mro__]
    # What the column holds: the setting may ask for more.
    crashes = None if crashes is None else min(crashes, _MOST_CRASHES)
    kept = error_of(error, attempt)
    if crashes and crashes >= conf().poison_after:
        return Ending(state=State.DISCARDED, reason=Reason.POISON, error=kept, crashes=crashes)
    if may_retry is False or not has_attempts or any(map(retry.is_final, classes)):
        return Ending(state=State.DISCARDED, reason=Reason.FAILED, error=kept, crashes=crashes)
    pause = retry.delay(attempt, _random) if wait is None else min(wait, LONGEST_PERIOD)
    return Ending(state=State.RETRYABLE, wait=pause, error=kept, crashes=crashes)


def stopped(wait: timedelta, key: str | None) -> Ending:
    """Return the ending of an attempt that spends nothing but time: the provider said stop."""
    return Ending(state=State.AVAILABLE, wait=wait, key=key)


def terminated(error: BaseException, *, attempt: int) -> Ending:
    """Return the ending of an attempt that was revoked, however many attempts its call had left."""
    return Ending(state=State.CANCELLED, error=error_of(error, attempt))


def error_of(error: BaseException | Reported, attempt: int) -> dict[str, Any]:
    """Return what a row keeps of an error."""
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
