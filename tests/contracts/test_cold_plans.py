"""A send, a pass and a report cost what they touch, whatever the planner believes of the tables: see `statistics`."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import pytest
from django.db import connection

from dispatcher import states
from tests.contracts.plans import (
    ORDERED,
    PASS,
    UNSORTED,
    Hot,
    bulk,
    check,
    explain,
    hot,
    kinds,
    nodes,
    outline,
)
from tests.contracts.statistics import COLD, DEAD, LONE, shaped

pytestmark = [pytest.mark.server, pytest.mark.django_db(transaction=False), pytest.mark.usefixtures("_shape")]

SECOND: Final = timedelta(seconds=1)
AWAKE, PARKED, HELD = [1, 2, 3], [101, 102, 103], [3101, 3102, 3103]
LOCK: Final = {"most": 20, "slack": 16_000}
DUE: Final = {"queues": None, "states": [*states.WAITING, states.State.RETRYABLE]}
NEW_KEYS: Final[dict[str, Any]] = {
    "name": [f"new:{number}" for number in range(500)],
    **dict.fromkeys(("concurrency", "per_worker", "rate_limit", "rate_period", "throttle_limit"), [None] * 500),
    "throttle_period": [None] * 500,
    "is_from_template": [True] * 500,
    "sender": ["token:me"] * 500,
    "policy": ["{}"] * 500,
}
HEADS: Final = [
    # At the head of the first lane 96,000 calls may be dead rows, in 400 pages of the index.
    hot("read_lane_heads", 500, ORDERED, lanes=AWAKE, heads=32),
    hot("read_lane_heads", 50, ORDERED, lanes=[LONE], heads=32, stuck=[1]),
    hot("lock_lanes", 700, ORDERED, **LOCK, awake=True),
    hot("lock_lanes", 100, ORDERED, **LOCK, lanes=[LONE]),
    hot("send_call", 100),
    hot("find_released_room", 50, keys=[LONE], lane=LONE),
    hot("sweep_lanes", 2_000, PASS, most=350),
]
"""What looks for the first call of a lane or a queue, also where calls have just ended."""
HOTS: Final = [
    hot("lock_lanes", 700, ORDERED, **LOCK, keys=[1], wait_for=1),
    hot("lock_lanes", 700, ORDERED, **LOCK, queues=["held"]),
    hot("count_queue_usage", 700, ORDERED, lanes=[*AWAKE, LONE]),
    hot("count_key_usage", 100, ORDERED, keys=[1, 2, LONE], worker=None),
    hot("read_lane_heads", 400, ORDERED, lanes=HELD, heads=32),
    hot("changed_lanes", 200, PASS, lanes=[LONE, *PARKED], positions=[1] * 4),
    hot("recheck", 50, asleep=[LONE], keys_with_room=[LONE], filled=["lone"], ahead=968),
    hot("wake_due", 20, UNSORTED, **DUE),
    hot("discard_expired", 20, UNSORTED, **DUE),
    hot("find_due", 100, PASS),
    hot("due_keys", 20, most=100),
    hot("due_queues", 700, most=100),
    hot("next_due", 50),
    hot("sweep_keys", 700, PASS, most=250),
    hot("send_call", 100, names=["key:9999"], queue="queue"),
    # What is in flight under a hot key was counted by the send before.
    hot("send_call", 100, names=["hot"], queue="hot"),
    hot("send_calls", 100, **bulk("lone", "key:9999")),
    # In bulk: linear in what is sent, whatever the number of keys and lanes that exist.
    hot("send_calls", 20_000, **bulk(*(f"key:{number}" for number in range(7_001, 7_501)))),
    hot("make_keys", 15_000, **NEW_KEYS),
    hot("make_lanes", 15_000, PASS, kinds=kinds(*(f"key:{number}" for number in range(3_101, 3_601))), deliveries=[]),
    hot("place_calls", 100, PASS, kinds=kinds("lone"), calls=[UUID(int=1)], kind_of=[0]),
    hot("unplaced_calls", 20, PASS, after=-(2**63)),
]


@pytest.fixture(scope="module")
def _shape(request: pytest.FixtureRequest, django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock(), shaped(request.param):
        yield


filled = pytest.mark.parametrize("_shape", [COLD], indirect=True)


@filled
@pytest.mark.parametrize("tried", [*HEADS, *HOTS], ids=str)
def test_a_hot_statement_reads_only_what_it_touches_in_tables_that_were_empty(tried: Hot) -> None:
    check(tried)


CALLS: Final = """
INSERT INTO dispatcher_callqueue
       (id, lane_id, task, args, kwargs, meta, queue, priority, on_limit, costs, state, attempt, errors,
        scheduled_at, expires_at)
SELECT gen_random_uuid(), 1, 'noop', '[]', '{}', '{}', 'queue', 0, 'wait', '{}', state, 0, '[]',
       CASE WHEN state = 'scheduled' THEN timestamptz '2020-01-01' END,
       CASE WHEN state = 'available' THEN timestamptz '2020-01-01' END
  FROM generate_series(1, 5000), unnest(ARRAY['scheduled', 'available']) AS kind (state);
UPDATE dispatcher_lane SET is_awake = true WHERE parked_on_id IS NULL AND NOT is_held;
UPDATE dispatcher_ratelimitkey SET opens_at = '2020-01-01'
"""


@filled
def test_no_more_rows_are_read_than_are_taken() -> None:
    """Where all lanes are awake, 5,000 calls are due at one instant, as many expire, and all keys open."""
    with connection.cursor() as cursor:
        cursor.execute(CALLS)
    for tried in (
        hot("lock_lanes", 1_000, ORDERED, **LOCK, awake=True),
        hot("wake_due", 1_000, UNSORTED, **DUE, most=20),
        hot("discard_expired", 1_000, UNSORTED, **DUE, most=20),
        hot("due_keys", 1_000, most=20),
    ):
        plan = explain(tried)
        assert max(node["Actual Rows"] * node["Actual Loops"] for node in nodes(plan)) <= tried.most, outline(plan)


@pytest.mark.parametrize("_shape", [DEAD], indirect=True)
@pytest.mark.parametrize("tried", HEADS, ids=str)
def test_calls_that_have_just_ended_cost_little_at_the_head_of_a_lane(tried: Hot) -> None:
    # The first one to come by rows that are dead marks them for all others.
    explain(tried)
    check(tried)
