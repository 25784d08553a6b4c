"""A date in Retry-After (RFC 9110, section 10.2.3), and what becomes of it. Seconds: tests/steps/test_run.py."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
import requests

from dispatcher.lifecycle.run import SHORTEST_STOP, Stopped, run

LATER = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)


def stopped(retry_after: str, date: str) -> timedelta:
    """Return how long a call waits that was answered with these headers."""
    response = requests.Response()
    response.status_code = 429
    response.headers.update({"Retry-After": retry_after, "Date": date})
    outcome = run(response.raise_for_status)
    assert isinstance(outcome, Stopped)
    return outcome.wait


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
    assert stopped(format_datetime(until, usegmt=True), date) == wait


@pytest.mark.parametrize("date", ["", "now", "yesterday, at noon"])
def test_without_a_date_that_can_be_read_the_clock_of_this_machine_counts(date: str) -> None:
    assert abs(stopped(format_datetime(datetime.now(UTC) + HOUR), date) - HOUR) < timedelta(minutes=1)
