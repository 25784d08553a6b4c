"""What a provider writes into Retry-After (RFC 9110, section 10.2.3), and what becomes of it."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Never

import pytest
import requests

from dispatcher.lifecycle.run import Failed, Stopped, run

LATER = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
HOUR = timedelta(hours=1)


def answered(status: int, retry_after: str | None) -> Never:
    response = requests.Response()
    response.status_code = status
    if retry_after is not None:
        response.headers["Retry-After"] = retry_after
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
)
def test_a_provider_that_says_when_stops_the_call(status: int, retry_after: str, wait: timedelta) -> None:
    outcome = run(lambda: answered(status, retry_after))
    assert isinstance(outcome, Stopped)
    # Dates are made when the tests are collected, which may be some minutes ago.
    assert abs(outcome.wait - wait) < timedelta(minutes=30)


@pytest.mark.parametrize(("status", "retry_after"), [(429, None), (503, ""), (429, "soon"), (429, "-1"), (500, "3600")])
def test_any_other_answer_is_a_failed_attempt(status: int, retry_after: str | None) -> None:
    assert isinstance(run(lambda: answered(status, retry_after)), Failed)
