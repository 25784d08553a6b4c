"""What groups cost: nothing for other keys; and where they are, not the lanes that wait for them, nor other groups."""

from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.contracts.large import EMPTY, TABLES, run
from tests.contracts.plans import Hot, check, hot

pytestmark = [pytest.mark.server, pytest.mark.django_db(transaction=False)]

# Keys 1 to 1,000 have a lane each, of which the first is ready. 100 groups have 20 members each; of the lanes that
# spend the first of them, one is ready, and 1,000 are parked on it.
_FILL: Final = """
INSERT INTO dispatcher_ratelimitkey (id, name, concurrency, is_paused)
SELECT n, 'key:' || n, 1, false FROM generate_series(1, 1000) AS n
 UNION ALL
SELECT 10000 + n, 'group' || n / 21 || ':' || CASE WHEN n % 21 = 0 THEN '*' ELSE (n % 21)::text END,
       CASE WHEN n % 21 > 0 THEN 1 END, false
  FROM generate_series(0, 21 * 100 - 1) AS n;

INSERT INTO dispatcher_queue (name, delivery, on_full, warn_at)
VALUES ('plain', 'direct', 'reject', 0.8), ('grouped', 'direct', 'reject', 0.8);

INSERT INTO dispatcher_lane (id, queue, priority, on_limit, key_ids)
SELECT n, CASE WHEN n <= 1000 THEN 'plain' ELSE 'grouped' END, 0, 'wait',
       CASE WHEN n <= 1000 THEN ARRAY[n] ELSE ARRAY[n - 1000, 10000] END
  FROM generate_series(1, 2000) AS n;

UPDATE dispatcher_lanesite SET place = CASE WHEN lane_id IN (1, 1001) THEN 0 ELSE 10000 END
 WHERE lane_id = 1 OR lane_id > 1000;

INSERT INTO dispatcher_callqueue
       (id, lane_id, task, args, kwargs, meta, queue, priority, on_limit, costs, state, attempt, errors)
SELECT gen_random_uuid(), lane.id, 'noop', '[]', '{}', '{}', lane.queue, 0, 'wait', '{}', 'available', 0, '[]'
  FROM dispatcher_lane AS lane WHERE lane.id = 1 OR lane.id > 1000;
"""
GROUP, MEMBER = 10_000, 10_001
HOT: Final = [
    hot("take", 200, queues=["plain"]),
    hot("take", 200, queues=["plain"], keys=[2]),
    hot("take", 600, queues=["grouped"]),
    hot("take", 600, queues=["grouped"], keys=[MEMBER]),
    hot("take", 600, queues=["grouped"], keys=[GROUP]),
]


@pytest.fixture(scope="module", autouse=True)
def _filled(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock():
        run(EMPTY, _FILL, f"VACUUM (ANALYZE) {TABLES}")
        yield
        run(EMPTY)


@pytest.mark.parametrize("tried", HOT, ids=str)
def test_lanes_that_wait_for_a_group_and_other_groups_cost_nothing(tried: Hot) -> None:
    assert check(tried)["Actual Rows"] == 2, "nothing starts"
