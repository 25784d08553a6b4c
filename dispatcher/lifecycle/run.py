"""Run: call the task; its end becomes a value."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

from celery.exceptions import Ignore, Reject, Retry

from dispatcher.errors import RateLimited
from dispatcher.policy import LONGEST_PERIOD

_SAYS_STOP = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
SHORTEST_STOP = timedelta(seconds=1)
"""The least that a stop puts off, whatever was said: it spends no attempt, so without a wait it would never end."""


@dataclass(frozen=True, kw_only=True)
class Returned:
    """The task returned a result."""

    result: Any


@dataclass(frozen=True, kw_only=True)
class Failed:
    """The task raised; `wait` if it said itself when to try again."""

    error: BaseException
    wait: timedelta | None = None
    may_retry: bool | None = None
    """What the task said of another attempt; None leaves it to the call's retry policy."""


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """The provider said stop: nothing is spent but time."""

    error: BaseException
    wait: timedelta
    key: str | None = None


@dataclass(frozen=True, kw_only=True)
class Ignored:
    """The task raised Celery's Ignore: it is done, and Celery is to be told so."""

    error: Ignore


Outcome = Returned | Failed | Stopped | Ignored


class RetryAsked(Retry):
    """Raised by `self.retry()` of a dispatched task: the queue counts the attempt and waits, not the broker."""

    def __init__(self, exc: BaseException | None, wait: timedelta | None, *, may_retry: bool) -> None:
        """Keep the cause, the wait if the task gave one, and whether its max_retries allow another attempt."""
        self.cause = exc
        self.wait = wait
        self.may_retry = may_retry
        super().__init__(exc=exc, when=wait.total_seconds() if wait is not None else None)

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to the worker's main process as Celery's own class: what can't be read there ends the worker."""
        return Retry, (str(self), None, self.when)


def run(task: Callable[[], Any]) -> Outcome:
    """Call the task and return how it ended."""
    try:
        return Returned(result=task())
    except RetryAsked as asked:
        # Without a cause it is the exception that the task was handling when it asked.
        return Failed(error=asked.cause or asked.__context__ or asked, wait=asked.wait, may_retry=asked.may_retry)
    except Ignore as ignore:
        return Ignored(error=ignore)
    except Reject as reject:
        return Failed(error=reject, may_retry=False)
    except RateLimited as stop:
        return Stopped(error=stop, wait=max(stop.retry_after, SHORTEST_STOP), key=stop.key)
    except Exception as error:  # noqa: BLE001 -- the one place where a task's own failure becomes a value
        wait = retry_after(getattr(error, "response", None))
        return Failed(error=error) if wait is None else Stopped(error=error, wait=max(wait, SHORTEST_STOP))


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
