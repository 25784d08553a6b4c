"""What groups cost: nothing where there is none; and where there are, not the lanes that wait for them, nor the others.

Buffers are counted, not time.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection, transaction

from tests.contracts.plans import Hot, buffers, explain, nodes, outline
from tests.contracts.test_plans import CHOOSE, EMPTY, ENDS, NOTHING, NOW

pytestmark = pytest.mark.server

# Keys 1 to 5,000 have a lane each.
PLAIN = """
INSERT INTO dispatcher_ratelimitkey (id, name, concurrency, is_paused)
SELECT n, 'key:' || n, 1, false FROM generate_series(1, 5000) AS n;

INSERT INTO dispatcher_lane (id, queue, priority, on_limit, key_ids)
SELECT n, 'queue', 0, 'wait', ARRAY[n] FROM generate_series(1, 5000) AS n;
"""
# 200 groups of 20 members each; 10,000 lanes are parked on the first one, and 10,000 that spend it sleep.
GROUPS = """
INSERT INTO dispatcher_ratelimitkey (id, name, concurrency, is_paused)
SELECT 10000 + n, 'group' || n / 21 || ':' || CASE WHEN n % 21 = 0 THEN '*' ELSE (n % 21)::text END, 1, false
  FROM generate_series(0, 4199) AS n;

INSERT INTO dispatcher_lane (id, queue, priority, on_limit, key_ids, parked_on_id)
SELECT 40000 + n, 'other' || n / 5000, 0, 'wait', ARRAY[1 + n % 5000, 10000], CASE WHEN n % 2 = 0 THEN 10000 END
  FROM generate_series(1, 20000) AS n;
"""
GROUP, MEMBER, LANE = 10_000, 10_001, 40_001
OF_GROUPS = {"member", "several", "first"}
"""What the fragments call the keys that they read."""
ROOM = {"keys": [1, 2], "lane": 1, "call": None, "ahead": 1_000, "now": NOW}

modes = pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan"])


@pytest.fixture(scope="module", params=[PLAIN, PLAIN + GROUPS], ids=["without", "with"])
def filled(request: Any, django_db_setup: None, django_db_blocker: Any) -> Iterator[bool]:
    """Fill the tables; return whether there are groups."""
    with django_db_blocker.unblock():
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(EMPTY + ";" + request.param)
        with connection.cursor() as cursor:
            cursor.execute("VACUUM (ANALYZE) dispatcher_ratelimitkey, dispatcher_lane, dispatcher_slot")
        yield request.param != PLAIN
        with connection.cursor() as cursor:
            cursor.execute(EMPTY)


@modes
@pytest.mark.django_db(transaction=False)
@pytest.mark.parametrize(
    "hot",
    [
        Hot("find_released_room", ROOM, 60),
        Hot("finish_calls", ENDS, 60),
        Hot("finish_and_choose", CHOOSE | {"keys": [1, 2], "queues": ["queue"]}, 60),
        Hot("lock_lanes", NOTHING | {"keys": [1]}, 100, is_tuned=True),
        Hot("lock_lanes", NOTHING | {"lanes": [1]}, 100, is_tuned=True),
    ],
    ids=str,
)
def test_keys_without_a_group_read_nothing_for_groups_where_there_is_none(hot: Hot, mode: str, *, filled: bool) -> None:
    plan = explain(hot, mode)
    read = [node for node in nodes(plan) if node.get("Alias") in OF_GROUPS and node["Actual Loops"]]
    assert buffers(plan) <= hot.most, outline(plan)
    if not filled:
        assert sum(map(buffers, read)) <= 1, outline(plan)
        assert not sum(node["Actual Rows"] for node in read)


@modes
@pytest.mark.django_db(transaction=False)
@pytest.mark.parametrize(
    "hot",
    [
        Hot("find_released_room", ROOM | {"keys": [MEMBER, GROUP]}, 120),
        Hot("find_groups", {"keys": [MEMBER, MEMBER + 1]}, 60),
        Hot("lock_lanes", NOTHING | {"lanes": [LANE], "most": 1}, 700, is_tuned=True),
        Hot("lock_lanes", NOTHING | {"keys": [MEMBER], "most": 1}, 700, is_tuned=True),
    ],
    ids=str,
)
@pytest.mark.parametrize("filled", [PLAIN + GROUPS], indirect=True, ids=["with"])
def test_lanes_that_wait_for_a_group_and_other_groups_cost_nothing(hot: Hot, mode: str, *, filled: bool) -> None:
    assert filled
    plan = explain(hot, mode)
    assert buffers(plan) <= hot.most, outline(plan)
