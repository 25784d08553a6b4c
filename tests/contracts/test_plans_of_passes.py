"""A pass costs the lanes that it takes and the calls that go, whatever the planner believes of the tables."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from dispatcher import states
from tests.contracts.plans import Hot, buffers, explain, nodes, outline
from tests.contracts.statistics import LANES, LONE, SHAPES, shaped

pytestmark = pytest.mark.server

SECOND = timedelta(seconds=1)
GATE = {"needs_worker": False, "deliveries": ["broker"], "ahead": 1_000, "now": None}
NOTHING: dict[str, Any] = {
    "lanes": [],
    "keys": [],
    "queues": [],
    "awake": False,
    "most": 20,
    "slack": 16_000,
    "avoid": [],
    "wait_for": None,
    **GATE,
}
LOOK: dict[str, Any] = {"heads": 32, "stuck": [], "now": None}
PASS: dict[str, Any] = {"is_tuned": True, "sorts": "on"}
DUE: dict[str, Any] = {"is_tuned": True, "sorts": "off"}
STATES = {"states": [*states.WAITING, states.State.RETRYABLE]}
AWAKE, PARKED, HELD = [1, 2, 3], [101, 102, 103], [3101, 3102, 3103]


@pytest.fixture(scope="module", autouse=True, params=SHAPES)
def _shape(request: pytest.FixtureRequest, django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock(), shaped(request.param):
        yield


HOT = [
    Hot("lock_lanes", NOTHING | {"awake": True}, 700, **PASS),
    Hot("lock_lanes", NOTHING | {"awake": True, "avoid": [LANES]}, 700, **PASS),
    Hot("lock_lanes", NOTHING | {"keys": [1]}, 700, **PASS),
    Hot("lock_lanes", NOTHING | {"keys": [1], "wait_for": 1}, 700, **PASS),
    Hot("lock_lanes", NOTHING | {"queues": ["held"]}, 700, **PASS),
    Hot("lock_lanes", NOTHING | {"lanes": AWAKE}, 700, **PASS),
    Hot("lock_lanes", NOTHING | {"lanes": [LONE]}, 100, **PASS),
    Hot("count_queue_usage", {"lanes": [*AWAKE, LONE], **GATE}, 700, **PASS),
    Hot("count_key_usage", {"keys": [1, 2, LONE], "now": None, "margin": SECOND, "worker": None}, 100, **PASS),
    # At the head of the first lane 96,000 calls may be dead rows, in 400 pages of the index.
    Hot("read_lane_heads", LOOK | {"lanes": AWAKE}, 500, **PASS),
    Hot("read_lane_heads", LOOK | {"lanes": PARKED}, 400, **PASS),
    Hot("read_lane_heads", LOOK | {"lanes": HELD}, 400, **PASS),
    Hot("read_lane_heads", LOOK | {"lanes": [LONE]}, 50, **PASS),
    Hot("read_lane_heads", LOOK | {"lanes": [LONE], "stuck": [1]}, 50, **PASS),
    Hot("clear_opening_times", {"keys": [1, LONE]}, 50, **PASS),
    Hot("defer_keys", {"keys": [1, LONE], "now": None}, 100),
    Hot("defer_lanes", {"lanes": [LONE]}, 50),
    Hot(
        "changed_lanes",
        {"lanes": [LONE, *PARKED], "positions": [1] * 4, "call": None, "waiting": "available"},
        200,
        is_tuned=True,
    ),
    Hot("wake_due", {"queues": None, "now": None, "most": 500} | STATES, 20, **DUE),
    Hot("discard_expired", {"now": None, "most": 500} | STATES, 20, **DUE),
    Hot("find_due", {"now": None, "publish_after": SECOND}, 100, is_tuned=True),
    Hot("due_keys", {"now": None, "most": 100}, 20),
    Hot("due_queues", {**GATE, "most": 100}, 700),
    Hot("next_due", {"now": None}, 50),
    Hot("sweep_keys", {"after": 0, "most": 250}, 700, is_tuned=True),
]


@pytest.mark.django_db(transaction=False)
@pytest.mark.parametrize(
    ("hot", "mode"),
    [(hot, "force_generic_plan") for hot in HOT] + [(hot, "force_custom_plan") for hot in HOT if not hot.is_tuned],
    ids=str,
)
def test_a_pass_reads_only_what_it_touches(hot: Hot, mode: str) -> None:
    # The first one to come by rows that are dead marks them for all others.
    explain(hot, mode)
    plan = explain(hot, mode)
    assert buffers(plan) <= hot.most, outline(plan)


# A change within the test's transaction, and what is read after it.
CHANGES = {
    "most lanes are awake": (
        "UPDATE dispatcher_lane SET is_awake = true WHERE parked_on_id IS NULL AND NOT is_held",
        Hot("lock_lanes", NOTHING | {"awake": True}, 1_000, **PASS),
    ),
    "5,000 calls are due at the same instant": (
        """
        INSERT INTO dispatcher_callqueue
               (id, lane_id, task, args, kwargs, meta, queue, priority, on_limit, costs, state, attempt, errors,
                scheduled_at)
        SELECT gen_random_uuid(), 1, 'noop', '[]', '{}', '{}', 'queue', 0, 'wait', '{}', 'scheduled', 0, '[]',
               '2020-01-01'
          FROM generate_series(1, 5000)
        """,
        Hot("wake_due", {"queues": None, "now": None, "most": 20} | STATES, 1_000, **DUE),
    ),
    "5,000 calls expire at the same instant": (
        """
        INSERT INTO dispatcher_callqueue
               (id, lane_id, task, args, kwargs, meta, queue, priority, on_limit, costs, state, attempt, errors,
                expires_at)
        SELECT gen_random_uuid(), 1, 'noop', '[]', '{}', '{}', 'queue', 0, 'wait', '{}', 'available', 0, '[]',
               '2020-01-01'
          FROM generate_series(1, 5000)
        """,
        Hot("discard_expired", {"now": None, "most": 20} | STATES, 1_000, **DUE),
    ),
    "all keys open at the same instant": (
        "UPDATE dispatcher_ratelimitkey SET opens_at = '2020-01-01'",
        Hot("due_keys", {"now": None, "most": 20}, 1_000),
    ),
}


@pytest.mark.django_db(transaction=False)
@pytest.mark.parametrize("change", CHANGES)
def test_no_more_rows_are_read_than_are_taken(change: str) -> None:
    statement, hot = CHANGES[change]
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(statement)
        plan = explain(hot, "force_generic_plan")
        transaction.set_rollback(True)
    assert max(node["Actual Rows"] * node["Actual Loops"] for node in nodes(plan)) <= hot.most, outline(plan)
