"""Run: how a task ended, as a value."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest
import requests
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded

from dispatcher.errors import RateLimited
from dispatcher.lifecycle.run import SHORTEST_STOP, Failed, Ignored, RetryAsked, Returned, Stopped, run

SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)


def raising(error: BaseException) -> Callable[[], Any]:
    def task() -> None:
        raise error

    return task


def of_requests(status: int, headers: dict[str, str]) -> Exception:
    response = requests.Response()
    response.status_code = status
    response.headers.update(headers)
    with pytest.raises(requests.HTTPError) as raised:
        response.raise_for_status()
    return raised.value


def of_httpx(status: int, headers: dict[str, str]) -> Exception:
    response = httpx.Response(status, headers=headers, request=httpx.Request("GET", "https://example.com"))
    with pytest.raises(httpx.HTTPStatusError) as raised:
        response.raise_for_status()
    return raised.value


clients = pytest.mark.parametrize("raised", [of_requests, of_httpx])


def test_what_a_task_returns_is_its_result() -> None:
    assert run(lambda: {"a": 1}) == Returned(result={"a": 1})
    assert run(lambda: None) == Returned(result=None)


@pytest.mark.parametrize(
    "error", [ValueError("bad"), SoftTimeLimitExceeded(), RecursionError(), MemoryError()], ids=repr
)
def test_what_a_task_raises_is_a_failure(error: Exception) -> None:
    assert run(raising(error)) == Failed(error=error)


def test_what_stops_the_process_is_not_kept_from_it() -> None:
    for error in (KeyboardInterrupt(), SystemExit()):
        with pytest.raises(type(error)):
            run(raising(error))


def test_a_retry_that_was_asked_for_keeps_its_cause_and_its_wait() -> None:
    cause = ValueError("bad")
    outcome = run(raising(RetryAsked(cause, 5 * SECOND, may_retry=True)))
    assert outcome == Failed(error=cause, wait=5 * SECOND, may_retry=True)
    asked = RetryAsked(None, None, may_retry=False)
    assert run(raising(asked)) == Failed(error=asked, wait=None, may_retry=False)


def test_celerys_ignore_and_reject_end_a_call() -> None:
    ignore, reject = Ignore(), Reject("no", requeue=True)
    assert run(raising(ignore)) == Ignored(error=ignore)
    assert run(raising(reject)) == Failed(error=reject, may_retry=False)


def test_a_task_may_say_that_the_provider_said_stop() -> None:
    stop = RateLimited(30, key="api")
    assert run(raising(stop)) == Stopped(error=stop, wait=30 * SECOND, key="api")
    stop = RateLimited(timedelta(minutes=1))
    assert run(raising(stop)) == Stopped(error=stop, wait=60 * SECOND, key=None)


@pytest.mark.parametrize("seconds", [0, 0.02, 1])
def test_a_stop_puts_off_for_a_second_at_the_least(seconds: float) -> None:
    stop = RateLimited(seconds)
    assert run(raising(stop)) == Stopped(error=stop, wait=SECOND)


def written(moment: datetime) -> str:
    return format_datetime(moment, usegmt=True)


LATER = datetime.now(UTC).replace(microsecond=0) + HOUR
YEAR = timedelta(days=366)
STOPS: dict[str, tuple[int, dict[str, str], timedelta]] = {
    "seconds": (429, {"Retry-After": "120"}, 120 * SECOND),
    "seconds of a 503": (503, {"Retry-After": "120"}, 120 * SECOND),
    "none": (429, {"Retry-After": "0"}, SHORTEST_STOP),
    "none of a 503": (503, {"Retry-After": "0"}, SHORTEST_STOP),
    "ages": (429, {"Retry-After": "9" * 30}, YEAR),
    "a time in the past": (503, {"Retry-After": written(LATER.replace(year=2020))}, SHORTEST_STOP),
    "a time without a zone": (429, {"Retry-After": "Wed, 01 Jan 2020 00:00:00"}, SHORTEST_STOP),
    "a time of an unknown zone": (429, {"Retry-After": "Wed, 01 Jan 2020 00:00:00 -0000"}, SHORTEST_STOP),
    # A date in Retry-After (RFC 9110, section 10.2.3) is read by the clock of the provider that wrote it.
    "ahead": (429, {"Retry-After": written(LATER + 30 * SECOND), "Date": written(LATER)}, 30 * SECOND),
    "a clock behind": (429, {"Retry-After": written(LATER - 3 * HOUR), "Date": written(LATER - 4 * HOUR)}, HOUR),
    "before its date": (429, {"Retry-After": written(LATER), "Date": written(LATER + SECOND)}, SHORTEST_STOP),
    "years ahead": (429, {"Retry-After": written(LATER + timedelta(days=9999)), "Date": written(LATER)}, YEAR),
}


@clients
@pytest.mark.parametrize(("status", "headers", "wait"), STOPS.values(), ids=STOPS)
def test_an_answer_that_says_stop_is_taken_at_its_word(
    raised: Callable[..., Exception], status: int, headers: dict[str, str], wait: timedelta
) -> None:
    error = raised(status, headers)
    assert run(raising(error)) == Stopped(error=error, wait=wait)


@clients
@pytest.mark.parametrize("date", [{}, *({"Date": date} for date in ("", "now", "yesterday, at noon"))], ids=str)
def test_without_a_date_that_can_be_read_the_clock_of_this_machine_counts(
    raised: Callable[..., Exception], date: dict[str, str]
) -> None:
    outcome = run(raising(raised(429, {"Retry-After": written(datetime.now(UTC) + HOUR), **date})))
    assert isinstance(outcome, Stopped)
    assert timedelta(minutes=59) < outcome.wait <= HOUR


@clients
@pytest.mark.parametrize(
    ("status", "retry_after"),
    [*((429, text) for text in (None, "", "soon", "-5", "1.5", "1e3")), *((it, "120") for it in (400, 404, 500, 502))],
)
def test_another_answer_is_a_failure(raised: Callable[..., Exception], status: int, retry_after: str | None) -> None:
    error = raised(status, {} if retry_after is None else {"Retry-After": retry_after})
    assert run(raising(error)) == Failed(error=error)


def test_an_error_with_a_response_of_another_kind_is_a_failure() -> None:
    for response in (None, "text", 429):
        error = ValueError("bad")
        error.response = response  # type: ignore[attr-defined]
        assert run(raising(error)) == Failed(error=error)
