"""What a provider writes into Retry-After (RFC 9110, section 10.2.3), and what becomes of it."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Never

import pytest
import requests

from dispatcher.lifecycle.run import SHORTEST_STOP, Failed, Stopped, run

LATER = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)


def answered(status: int, retry_after: str | None, date: str | None = None) -> Never:
    response = requests.Response()
    response.status_code = status
    if retry_after is not None:
        response.headers["Retry-After"] = retry_after
    if date is not None:
        response.headers["Date"] = date
    response.raise_for_status()
    pytest.fail("it raises")


@pytest.mark.parametrize(
    ("status", "retry_after", "wait"),
    [
        (429, "3600", HOUR),
        (503, "3600", HOUR),
        (429, format_datetime(LATER, usegmt=True), HOUR),
        (429, format_datetime(LATER.replace(tzinfo=None)), HOUR),
        (429, "0", timedelta(0)),
        (429, format_datetime(LATER - 2 * HOUR, usegmt=True), timedelta(0)),
    ],
    ids=["seconds", "seconds of a 503", "date", "date with a numeric zone", "zero seconds", "date in the past"],
)
def test_a_provider_that_says_when_stops_the_call(status: int, retry_after: str, wait: timedelta) -> None:
    outcome = run(lambda: answered(status, retry_after))
    assert isinstance(outcome, Stopped)
    # Dates are made when the tests are collected, which may be some minutes ago.
    assert abs(outcome.wait - wait) < timedelta(minutes=30)


@pytest.mark.parametrize(
    ("until", "date", "wait"),
    [
        (LATER + 30 * SECOND, format_datetime(LATER, usegmt=True), 30 * SECOND),
        (LATER - 3 * HOUR, format_datetime(LATER - 4 * HOUR, usegmt=True), HOUR),
        (LATER, format_datetime(LATER + SECOND, usegmt=True), SHORTEST_STOP),
        (LATER + timedelta(days=9999), format_datetime(LATER, usegmt=True), timedelta(days=366)),
    ],
    ids=["ahead", "by a clock that is behind", "in the past", "years ahead"],
)
def test_a_date_is_read_by_the_clock_of_the_provider_that_wrote_it(until: datetime, date: str, wait: timedelta) -> None:
    outcome = run(lambda: answered(429, format_datetime(until, usegmt=True), date))
    assert isinstance(outcome, Stopped)
    assert outcome.wait == wait


@pytest.mark.parametrize("date", ["", "now", "yesterday, at noon"])
def test_without_a_date_that_can_be_read_the_clock_of_this_machine_counts(date: str) -> None:
    outcome = run(lambda: answered(429, format_datetime(datetime.now(UTC) + HOUR, usegmt=True), date))
    assert isinstance(outcome, Stopped)
    assert abs(outcome.wait - HOUR) < timedelta(minutes=1)


@pytest.mark.parametrize(("status", "retry_after"), [(429, None), (503, ""), (429, "soon"), (429, "-1"), (500, "3600")])
def test_any_other_answer_is_a_failed_attempt(status: int, retry_after: str | None) -> None:
    assert isinstance(run(lambda: answered(status, retry_after)), Failed)
