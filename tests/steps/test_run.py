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
from dispatcher.lifecycle.run import Failed, Ignored, RetryAsked, Returned, Stopped, run

SECOND = timedelta(seconds=1)


def raising(error: BaseException) -> Callable[[], Any]:
    def task() -> None:
        raise error

    return task


def of_requests(status: int, retry_after: str | None = None) -> Exception:
    response = requests.Response()
    response.status_code = status
    if retry_after is not None:
        response.headers["Retry-After"] = retry_after
    try:
        response.raise_for_status()
    except requests.HTTPError as error:
        return error
    raise AssertionError


def of_httpx(status: int, retry_after: str | None = None) -> Exception:
    headers = {} if retry_after is None else {"retry-after": retry_after}
    response = httpx.Response(status, headers=headers, request=httpx.Request("GET", "https://example.com"))
    try:
        response.raise_for_status()
    except httpx.HTTPStatusError as error:
        return error
    raise AssertionError


clients = pytest.mark.parametrize("raised", [of_requests, of_httpx])


def test_what_a_task_returns_is_its_result() -> None:
    assert run(lambda: {"a": 1}) == Returned(result={"a": 1})
    assert run(lambda: None) == Returned(result=None)


@pytest.mark.parametrize("error", [ValueError("bad"), SoftTimeLimitExceeded(), RecursionError()], ids=repr)
def test_what_a_task_raises_is_a_failure(error: Exception) -> None:
    assert run(raising(error)) == Failed(error=error)


def test_what_stops_the_process_is_not_kept_from_it() -> None:
    for error in (KeyboardInterrupt(), SystemExit(), MemoryError()):
        if isinstance(error, Exception):
            assert run(raising(error)) == Failed(error=error)
        else:
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


def test_a_wait_that_is_negative_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        RateLimited(-1)


@clients
@pytest.mark.parametrize("status", [429, 503])
def test_an_answer_that_says_stop_is_taken_at_its_word(raised: Callable[..., Exception], status: int) -> None:
    error = raised(status, "120")
    assert run(raising(error)) == Stopped(error=error, wait=120 * SECOND)
    error = raised(status, "0")
    assert run(raising(error)) == Stopped(error=error, wait=SECOND)


@clients
def test_an_answer_may_name_the_time(raised: Callable[..., Exception]) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    outcome = run(raising(raised(429, format_datetime(later, usegmt=True))))
    assert isinstance(outcome, Stopped)
    assert timedelta(minutes=59) < outcome.wait <= timedelta(hours=1)
    past = format_datetime(datetime(2020, 1, 1, tzinfo=UTC), usegmt=True)
    outcome = run(raising(raised(503, past)))
    assert isinstance(outcome, Stopped)
    assert outcome.wait == SECOND


@clients
@pytest.mark.parametrize("text", ["Wed, 01 Jan 2020 00:00:00", "Wed, 01 Jan 2020 00:00:00 -0000"])
def test_a_time_without_a_zone_is_gmt(raised: Callable[..., Exception], text: str) -> None:
    outcome = run(raising(raised(429, text)))
    assert isinstance(outcome, Stopped)
    assert outcome.wait == SECOND


@clients
@pytest.mark.parametrize("text", [None, "", "soon", "-5", "1.5", "1e3"])
def test_an_answer_that_does_not_say_when_is_a_failure(raised: Callable[..., Exception], text: str | None) -> None:
    error = raised(429, text)
    assert run(raising(error)) == Failed(error=error)


@clients
def test_an_answer_that_says_stop_for_ages_is_taken_at_a_year(raised: Callable[..., Exception]) -> None:
    outcome = run(raising(raised(429, "9" * 30)))
    assert isinstance(outcome, Stopped)
    assert outcome.wait == timedelta(days=366)


@clients
@pytest.mark.parametrize("status", [400, 404, 500, 502])
def test_another_bad_answer_is_a_failure(raised: Callable[..., Exception], status: int) -> None:
    error = raised(status, "120")
    assert run(raising(error)) == Failed(error=error)


def test_an_error_with_a_response_of_another_kind_is_a_failure() -> None:
    for response in (None, "text", 429):
        error = ValueError("bad")
        error.response = response  # type: ignore[attr-defined]
        assert run(raising(error)) == Failed(error=error)
