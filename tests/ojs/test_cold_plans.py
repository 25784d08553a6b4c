"""What the HTTP API asks at each send and fetch costs what it touches, whatever the planner believes of the tables."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

import pytest
from django.db import connection

from dispatcher import states
from tests.contracts.plans import Hot, check, explain, hot
from tests.contracts.statistics import COLD, DEAD, shaped

pytestmark = [pytest.mark.server, pytest.mark.django_db(transaction=False), pytest.mark.usefixtures("_shape")]

JOBS: Final = """
INSERT INTO dispatcher_ojs_job (call_id, created_at, unique_key, outcome, ended_at)
SELECT call.id, call.created_at, 'often', call.state, call.finished_at
  FROM dispatcher_callqueue AS call
 WHERE call.queue = 'lone' AND call.state = 'completed'
"""
WAITING: Final = [
    # A hundred thousand dead rows are 390 pages of the index, until a vacuum.
    hot("count_waiting", 500, queue="queue", most=100),
    hot("drop_oldest", 500, queue="queue", most=1),
]
HOTS: Final = [
    hot("find_unique", 100, unique_key="often", states=[*states.State], period=timedelta(seconds=1)),
    hot("find_unique", 20, unique_key="often", states=["available", "scheduled"], period=None),
    hot("fetchable_queues", 60, queues=["lone", "hot"]),
]


@pytest.fixture(scope="module")
def _shape(request: pytest.FixtureRequest, django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock(), shaped(request.param):
        with connection.cursor() as cursor:
            cursor.execute(JOBS)
        yield


@pytest.mark.parametrize("_shape", [COLD], indirect=True)
@pytest.mark.parametrize("tried", [*WAITING, *HOTS], ids=str)
def test_a_hot_statement_reads_only_what_it_touches_in_tables_that_were_empty(tried: Hot) -> None:
    check(tried)


@pytest.mark.parametrize("_shape", [DEAD], indirect=True)
@pytest.mark.parametrize("tried", WAITING, ids=str)
def test_calls_that_have_just_ended_cost_little_at_the_head_of_a_queue(tried: Hot) -> None:
    # The first one to come by rows that are dead marks them for all others.
    explain(tried)
    check(tried)
