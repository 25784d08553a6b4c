"""What the tests of `take` share."""

from collections.abc import Iterator

import psycopg
import pytest

from tests.db_admin import connect


@pytest.fixture
def db(transactional_db: None) -> Iterator[psycopg.Connection]:
    """Return a connection of its own that commits each statement."""
    with connect() as connected:
        yield connected
