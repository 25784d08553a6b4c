"""How durations are written: each version of the server reads them, and as they were given."""

import re
from datetime import timedelta

import pytest
from django.db import connection

from dispatcher import sql
from dispatcher.sql import rows
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
