"""What is hot costs what it touches, whatever the planner believes of the tables: see `statistics`."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pytest

from tests.contracts.hot import OF_A_CALL, OF_A_TICK, trips
from tests.contracts.plans import Hot, check
from tests.contracts.statistics import COLD, DEAD, shaped

pytestmark = [pytest.mark.server, pytest.mark.django_db(transaction=False)]

FRONT: Final = 200
"""The pages of an index at the front of a lane, where 18,000 calls have just ended."""


@pytest.fixture(scope="module", params=[COLD, DEAD], autouse=True)
def _shape(request: pytest.FixtureRequest, django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock(), shaped(request.param):
        yield


@pytest.mark.parametrize("tried", [*trips().values(), *OF_A_CALL, *OF_A_TICK], ids=str)
def test_a_hot_statement_reads_only_what_it_touches(tried: Hot) -> None:
    check(replace(tried, most=tried.most + FRONT))
