"""What groups cost: nothing for other keys; and where they are, not the lanes that wait for them, nor the others."""

from collections.abc import Iterator
from typing import Any, Final

import pytest
from django.db import connection, transaction

from tests.contracts.large import EMPTY, RUNNING
from tests.contracts.plans import FEED, PASS, Hot, check, ends, hot

pytestmark = pytest.mark.server

# Keys 1 to 5,000 have a lane each. 200 groups have 20 members each; 10,000 lanes are parked on the first group, and
# 10,000 that spend it sleep.
FILL: Final = """
INSERT INTO dispatcher_ratelimitkey (id, name, concurrency, is_paused)
SELECT n, 'key:' || n, 1, false FROM generate_series(1, 5000) AS n;

INSERT INTO dispatcher_lane (id, queue, priority, on_limit, key_ids)
SELECT n, 'queue', 0, 'wait', ARRAY[n] FROM generate_series(1, 5000) AS n;

INSERT INTO dispatcher_ratelimitkey (id, name, concurrency, is_paused)
SELECT 10000 + n, 'group' || n / 21 || ':' || CASE WHEN n % 21 = 0 THEN '*' ELSE (n % 21)::text END, 1, false
  FROM generate_series(0, 4199) AS n;

INSERT INTO dispatcher_lane (id, queue, priority, on_limit, key_ids, parked_on_id)
SELECT 40000 + n, 'other' || n / 5000, 0, 'wait', ARRAY[1 + n % 5000, 10000], CASE WHEN n % 2 = 0 THEN 10000 END
  FROM generate_series(1, 20000) AS n;
"""

GROUP, MEMBER, LANE = 10_000, 10_001, 40_001
LOCK: Final = {"needs_worker": True, "slack": 16_000}
HOT: Final = [
    # Keys without a group.
    hot("find_released_room", 60, keys=[1, 2], lane=1),
    hot("finish_calls", 60, FEED, **ends(RUNNING)),
    hot("finish_and_choose", 60, FEED, **ends(RUNNING), keys=[1, 2], queues=["queue"], most=4),
    hot("lock_lanes", 100, PASS, **LOCK, keys=[1], most=100),
    hot("lock_lanes", 100, PASS, **LOCK, lanes=[1], most=100),
    # Members of groups.
    hot("find_released_room", 120, keys=[MEMBER, GROUP], lane=1),
    hot("find_groups", 60, keys=[MEMBER, MEMBER + 1]),
    hot("lock_lanes", 700, PASS, **LOCK, lanes=[LANE], most=1),
    hot("lock_lanes", 700, PASS, **LOCK, keys=[MEMBER], most=1),
]


@pytest.fixture(scope="module", autouse=True)
def _filled(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock():
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"{EMPTY};{FILL}")
        with connection.cursor() as cursor:
            cursor.execute("VACUUM (ANALYZE) dispatcher_ratelimitkey, dispatcher_lane, dispatcher_slot")
        yield
        with connection.cursor() as cursor:
            cursor.execute(EMPTY)


@pytest.mark.django_db(transaction=False)
@pytest.mark.parametrize("tried", HOT, ids=str)
def test_lanes_that_wait_for_a_group_and_other_groups_cost_nothing(tried: Hot) -> None:
    check(tried)
