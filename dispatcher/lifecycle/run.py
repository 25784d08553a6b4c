"""Run: call the task; its end becomes a value."""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

from celery.exceptions import Ignore, Reject, Retry

from dispatcher import ending
from dispatcher.ending import Ending
from dispatcher.errors import RateLimited
from dispatcher.limits.policy import LONGEST_PERIOD
from dispatcher.request import Changes
from dispatcher.states import TERMINAL, State

_SAYS_STOP = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
SHORTEST_STOP = timedelta(seconds=1)
"""The least that a stop puts off, whatever was said: it spends no attempt, so without a wait it would never end."""


@dataclass(frozen=True, slots=True)
class Unstored:
    """What a task returned that ignores its results: Celery's signals and links have it, the call's row has not."""

    value: Any


@dataclass(frozen=True, kw_only=True)
class Returned:
    """The task returned a result."""

    result: Any

    @property
    def value(self) -> Any:
        """What the task returned."""
        return self.result.value if isinstance(self.result, Unstored) else self.result

    @property
    def stored(self) -> Any:
        """What the call's row keeps of it."""
        return None if isinstance(self.result, Unstored) else self.result


@dataclass(frozen=True, kw_only=True)
class Failed:
    """The task raised; `wait` if it said itself when to try again."""

    error: BaseException
    wait: timedelta | None = None
    may_retry: bool | None = None
    """What the task said of another attempt; None leaves it to the call's retry policy."""
    changes: Changes | None = None
    """What the next attempt is made with, where the task named it."""


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """The provider said stop: nothing is spent but time."""

    error: BaseException
    wait: timedelta
    key: str | None = None


@dataclass(frozen=True, kw_only=True)
class Ignored:
    """The task raised Celery's Ignore: it is done, and is ignored by Celery, too."""

    error: Ignore
    changes: Changes | None = None
    """What its call is now, where the task has replaced itself."""
    wait: timedelta | None = None


Outcome = Returned | Failed | Stopped | Ignored


class ProcessEnds(SystemExit):
    """Raised in a task whose process the worker ends: it may clean up, and has no outcome."""


class RetryAsked(Retry):
    """Raised by `self.retry()` of a dispatched task: the queue counts the attempt and waits, not the broker."""

    def __init__(
        self, exc: BaseException | None, wait: timedelta | None, *, may_retry: bool, changes: Changes | None = None
    ) -> None:
        """Keep the cause, the wait if the task gave one, whether another attempt may be made, and what it changes."""
        self.cause = exc
        self.wait = wait
        self.may_retry = may_retry
        self.changes = changes
        super().__init__(exc=exc, when=wait.total_seconds() if wait is not None else None)

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to the worker's main process as Celery's own class: what can't be read there ends the worker."""
        return Retry, (str(self), None, self.when)


class ReplaceAsked(Ignore):
    """Raised by `self.replace()` of a dispatched task: its call becomes another task's, and goes on."""

    def __init__(self, changes: Changes, wait: timedelta | None) -> None:
        """Keep what the call is from now on, and for how long it waits first."""
        self.changes = changes
        self.wait = wait
        super().__init__("replaced by another task")

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to the worker's main process as Celery's own class, as above."""
        return Ignore, self.args


def run(task: Callable[[], Any], *, results: list[Any] | None = None) -> Outcome:
    """Call the task and return how it ended.

    results: takes what the task returns, in the same moment: a soft time limit that is raised after that, at any line,
    does not change how the task ended.
    """
    results = [] if results is None else results
    try:
        # In C: no handler of a signal runs between the task's return and the result being kept.
        results.extend(map(operator.call, [task]))
    except Exception as error:  # noqa: BLE001 -- the one place where a task's own failure becomes a value
        if not results:
            return raised(error)
    return Returned(result=results[0])


def raised(error: BaseException) -> Outcome:
    """Return how a task ended that raised this."""
    match error:
        case RetryAsked():
            # Without a cause it is the exception that the task was handling when it asked.
            cause = error.cause or error.__context__ or error
            return Failed(error=cause, wait=error.wait, may_retry=error.may_retry, changes=error.changes)
        case ReplaceAsked():
            return Ignored(error=error, changes=error.changes, wait=error.wait)
        case Ignore():
            return Ignored(error=error)
        case Reject():
            return Failed(error=error, may_retry=False)
        case RateLimited():
            return Stopped(error=error, wait=max(error.retry_after, SHORTEST_STOP), key=error.key)
        case _:
            wait = retry_after(getattr(error, "response", None))
            return Failed(error=error) if wait is None else Stopped(error=error, wait=max(wait, SHORTEST_STOP))


def ending_of(outcome: Outcome, *, attempt: int, policy: Mapping[str, Any] | None) -> Ending:
    """Return how an attempt ends with this outcome. policy: the call's own retry policy."""
    match outcome:
        case Returned():
            return ending.completed(outcome.stored)
        case Ignored(changes=None):
            return ending.completed(None)
        case Ignored():
            return Ending(state=State.AVAILABLE, wait=outcome.wait, changes=outcome.changes)
        case Stopped():
            return ending.stopped(outcome.wait, outcome.key)
        case Failed():
            failed = ending.failed(
                outcome.error, attempt=attempt, policy=policy, wait=outcome.wait, may_retry=outcome.may_retry
            )
            return replace(failed, changes=outcome.changes)


def settled(outcome: Outcome, ended: Ending) -> Outcome:
    """Return the outcome with the wait that was decided, so that Celery reports the same."""
    if isinstance(outcome, Failed):
        return Failed(error=outcome.error, wait=ended.wait, may_retry=ended.state not in TERMINAL)
    return outcome


def retry_after(response: Any) -> timedelta | None:
    """Read Retry-After (RFC 9110, section 10.2.3) from a 429 or 503 of requests or httpx; None if it has none."""
    if getattr(response, "status_code", None) not in _SAYS_STOP:
        return None
    value = response.headers.get("Retry-After", "")
    if value.isdecimal():
        # More digits than these are past any calendar.
        return min(timedelta(seconds=int(value[:12])), LONGEST_PERIOD)
    until = _http_date(value)
    if until is None:
        return None
    # By the clock that wrote it: the provider's Date (section 6.6.1). This machine's may be wrong.
    now = _http_date(response.headers.get("Date", "")) or datetime.now(UTC)
    return min(max(until - now, timedelta(0)), LONGEST_PERIOD)


def _http_date(value: str) -> datetime | None:
    try:
        at = parsedate_to_datetime(value)
    except ValueError:
        return None
    return at if at.tzinfo else at.replace(tzinfo=UTC)
