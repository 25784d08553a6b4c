"""`take` in races: nothing exceeded, nothing out of order, nothing lost, nothing left."""

from collections.abc import Iterator

import psycopg
import pytest
from django.db import connection

from tests.rules import races


def _connect() -> psycopg.Connection:
    return psycopg.connect(**connection.get_connection_params(), autocommit=True)


@pytest.fixture
def db(transactional_db: None) -> Iterator[psycopg.Connection]:
    """Return a connection of its own that commits each statement."""
    with _connect() as connected:
        yield connected


@pytest.mark.parametrize("seed", [1, 2])
def test_a_race_breaks_no_limit_and_leaves_nothing(db: psycopg.Connection, seed: int) -> None:
    with races.logged(db, seed):
        race = races.Race(connect=_connect, seconds=4, seed=seed)
        race.run()
        assert race.errors == []
        assert race.sent > 0
        assert races.faults(db) == []
