"""`take` in races: nothing exceeded, nothing out of order, nothing lost, nothing left."""

import psycopg
import pytest

from tests.db_admin import connect
from tests.rules import races


@pytest.mark.parametrize("seed", [1, 2])
def test_a_race_breaks_no_limit_and_leaves_nothing(db: psycopg.Connection, seed: int) -> None:
    with races.logged(db, seed):
        race = races.Race(connect=connect, seconds=4, seed=seed)
        race.run()
        assert race.errors == []
        assert race.sent > 0
        assert races.faults(db) == []
