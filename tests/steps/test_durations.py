"""How durations are written: each version of the server reads them, and as they were given."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from dispatcher import sql
from dispatcher.conf import conf, needs_worker, process_silence
from dispatcher.lifecycle import take
from dispatcher.lifecycle.take import Notes, Taker
from dispatcher.sql import rows
from dispatcher.sql.functions import installed_name
from tests.builders import committed

pytestmark = [committed, pytest.mark.server]

DURATIONS = [
    timedelta(0),
    timedelta(microseconds=1),
    timedelta(seconds=-2.1),
    timedelta(days=366, seconds=59, microseconds=999_999),
    timedelta(days=36_525),
]


@pytest.mark.parametrize("duration", DURATIONS, ids=str)
def test_a_duration_is_read_as_it_was_given(duration: timedelta) -> None:
    connection.ensure_connection()
    with rows.cursor(connection.connection, timedelta) as cursor:
        assert cursor.execute("SELECT $1", [duration]).fetchall() == [duration]
        assert cursor.execute("SELECT $1::text::interval", [sql.interval(duration)]).fetchall() == [duration]


@pytest.mark.parametrize("duration", DURATIONS, ids=str)
def test_no_number_of_a_duration_is_longer_than_postgresql_14_reads(duration: timedelta) -> None:
    assert all(abs(int(number)) < 2**31 for number in re.findall(r"-?\d+", sql.interval(duration)))


def test_functions_read_each_setting_by_its_name() -> None:
    settings, notes, slack, paced = conf(), Notes(), timedelta(milliseconds=3), timedelta(milliseconds=4)
    notes.since = datetime(2030, 1, 2, 3, 4, 5, 6_000, tzinfo=UTC)
    text = take.tuning(Taker(delay=slack, paced_delay=paced, notes=notes, takes_any=True))
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT ('{text}'::{installed_name('tuning')}).*")
        read = dict(zip([column.name for column in cursor.description], cursor.fetchone(), strict=True))
    assert read == {
        "horizon": settings.horizon + take.LEAD + slack,
        "lead": take.LEAD + slack,
        "slack": slack,
        "paced_slack": paced,
        "margin": settings.margin,
        "ramp": settings.ramp,
        "later": settings.reschedule_after,
        "keep": take.KEEP,
        "silence": process_silence(),
        "notes": notes.since,
        "lease": settings.run_lease,
        "dispatch_lease": settings.dispatch_lease,
        "ahead": settings.dispatch_ahead,
        "needs_worker": needs_worker(),
        "any_delivery": True,
        "keeps_events": False,
    }


@pytest.mark.parametrize(
    "texts", [(), ("plain", "with, comma"), ('"quoted"', "back\\slash", "{braces}", "NULL", "")], ids=str
)
def test_an_array_is_read_as_it_was_given(texts: tuple[str, ...]) -> None:
    connection.ensure_connection()
    with rows.cursor(connection.connection, list) as cursor:
        assert cursor.execute("SELECT $1::text[]", [sql.array(texts)]).fetchall() == [[*texts]]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/St_Johns"])
def test_a_time_is_read_in_utc_whatever_the_zone_of_the_connection(zone: str) -> None:
    at = datetime(1890, 7, 8, 9, 10, 11, 120_000, tzinfo=UTC)
    connection.ensure_connection()
    with rows.cursor(connection.connection, datetime) as cursor:
        cursor.execute(f"SET TIME ZONE '{zone}'")
        for each in (at, at.replace(year=2030, microsecond=0)):
            (read,) = cursor.execute("SELECT $1::timestamptz", [each]).fetchall()
            assert (read, read.tzinfo) == (each, UTC)
        cursor.execute("RESET TIME ZONE")


def test_columns_that_are_not_the_fields_of_a_row_are_refused() -> None:
    connection.ensure_connection()
    with (
        rows.cursor(connection.connection, take.Row) as cursor,
        pytest.raises(TypeError, match="are not the fields of Row"),
    ):
        cursor.execute("SELECT 1 AS id").fetchall()
