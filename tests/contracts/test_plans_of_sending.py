"""Sending costs what is sent, whatever the planner believes of the tables: see the shapes of `statistics`."""

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from dispatcher.states import State
from tests.contracts.plans import Hot, buffers, explain, outline
from tests.contracts.statistics import LONE, SHAPES, shaped

pytestmark = pytest.mark.server

SECOND = timedelta(seconds=1)


@pytest.fixture(scope="module", autouse=True, params=SHAPES)
def _shape(request: pytest.FixtureRequest, django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock(), shaped(request.param):
        yield


def kinds(*names: str) -> str:
    """Return the kinds of calls that spend one key each."""
    return json.dumps(
        [
            {
                "number": number,
                "queue": name.split(":")[0].replace("key", "queue"),
                "priority": 0,
                "on_limit": "wait",
                "names": [name],
                "placement": {},
            }
            for number, name in enumerate(names)
        ]
    )


SEND = {
    "id": UUID(int=1),
    "names": ["lone"],
    "queue": "lone",
    "priority": 0,
    "on_limit": "wait",
    "task": "noop",
    "args": "[]",
    "kwargs": "{}",
    "call_data": None,
    "meta": "{}",
    "headers": None,
    "options": None,
    "retry": None,
    "margin": SECOND,
    "ramp": SECOND,
    "lease": SECOND,
    "needs_worker": False,
    "ahead": 968,
}


def bulk(count: int) -> dict[str, Any]:
    """Return what writes so many calls, each of a kind of its own; without the kinds."""
    given = {column: ["{}"] * count for column in ("args", "kwargs", "meta", "costs")}
    absent = (
        *("call_data", "retry", "scheduled_at", "expires_at", "timeout", "visibility", "unique_key"),
        *("envelope", "headers", "options", "scheduled_in", "expires_in"),
    )
    return {
        "may_defer": True,
        "is_eager": False,
        "now": None,
        "ids": [UUID(int=number) for number in range(1, count + 1)],
        "kind_of": list(range(count)),
        "task": ["noop"] * count,
        "is_pending": [False] * count,
        **given,
        **{column: [None] * count for column in absent},
    }


NEW_KEYS: dict[str, Any] = {
    "name": [f"new:{number}" for number in range(500)],
    **{column: [None] * 500 for column in ("concurrency", "per_worker", "rate_limit", "rate_period", "throttle_limit")},
    "throttle_period": [None] * 500,
    "is_from_template": [True] * 500,
    "sender": ["token:me"] * 500,
    "policy": ["{}"] * 500,
}
AGAIN: dict[str, Any] = {
    "asleep": [],
    "full": [],
    "held": [],
    "keys_with_room": [],
    "filled": [],
    "ahead": 968,
    "now": None,
}

# Of LONE there are no rows, so a query for one must not read those of the others.
HOT = [
    Hot("send_call", SEND, 100),
    Hot("send_call", SEND | {"names": ["key:9999"], "queue": "queue"}, 100),
    # What is in flight under a hot key was counted by the send before.
    Hot("send_call", SEND | {"names": ["hot"], "queue": "hot"}, 100),
    Hot("send_calls", bulk(2) | {"kinds": kinds("lone", "key:9999")}, 100),
    # In bulk: linear in what is sent, whatever the number of keys and lanes that exist.
    Hot("send_calls", bulk(500) | {"kinds": kinds(*(f"key:{number}" for number in range(7_001, 7_501)))}, 20_000),
    Hot("make_keys", NEW_KEYS, 15_000),
    Hot(
        "make_lanes",
        {"kinds": kinds(*(f"key:{number}" for number in range(3_101, 3_601))), "queues": [], "deliveries": []},
        15_000,
        is_tuned=True,
    ),
    Hot("place_calls", {"kinds": kinds("lone"), "calls": [UUID(int=1)], "kind_of": [0]}, 100, is_tuned=True),
    Hot("find_keys", {"names": ["lone", "key:9999"]}, 20),
    Hot("find_unplaced", {"calls": [UUID(int=1)]}, 20),
    Hot("unplaced_calls", {"after": -(2**63), "most": 500}, 20, is_tuned=True),
    Hot("changed_lanes", {"lanes": [LONE], "positions": [1], "call": None, "waiting": "available"}, 20, is_tuned=True),
    Hot("wake_lanes", {"lanes": [LONE]}, 50),
    Hot("find_unique", {"unique_key": "x", "states": ["available"], "period": None}, 20),
    Hot("find_unique", {"unique_key": "often", "states": [*State], "period": SECOND}, 100),
    Hot("find_unique", {"unique_key": "often", "states": ["available", "scheduled"], "period": None}, 20),
    Hot("queue_bounds", {"names": ["queue"], "is_lock": False}, 20),
    Hot("count_waiting", {"queue": "hot", "most": 100_000}, 20),
    Hot("drop_oldest", {"queue": "hot", "most": 1}, 20),
    # A hundred thousand dead rows are 390 pages of the index, until a vacuum.
    Hot("count_waiting", {"queue": "queue", "most": 100}, 500),
    Hot("drop_oldest", {"queue": "queue", "most": 1}, 500),
    Hot("open_queue", {"name": "new", "delivery": "broker"}, 50),
    Hot("ready_queues", {"queues": ["lone", "hot"], "most": 10, "avoid": []}, 60),
    Hot("find_released_room", {"keys": [LONE], "lane": LONE, "call": None, "ahead": 968, "now": None}, 50),
    Hot("clear_opening_times", {"keys": [LONE]}, 20, is_tuned=True),
    Hot("recheck", AGAIN | {"asleep": [LONE], "keys_with_room": [LONE], "filled": ["lone"]}, 50),
    Hot("recheck", AGAIN | {"asleep": [LONE], "keys_with_room": [LONE], "filled": ["lone"]}, 50, is_tuned=True),
    Hot("find_due", {"now": None, "publish_after": SECOND}, 100, is_tuned=True),
    Hot("sweep_lanes", {"after": 0, "most": 350}, 2_000, is_tuned=True),
    Hot("find_overdue", {"wait": SECOND}, 20),
]


@pytest.mark.django_db(transaction=False)
@pytest.mark.parametrize(
    ("hot", "mode"),
    [(hot, "force_generic_plan") for hot in HOT] + [(hot, "force_custom_plan") for hot in HOT if not hot.is_tuned],
    ids=str,
)
def test_sending_reads_only_what_it_touches(hot: Hot, mode: str) -> None:
    # The first one to come by rows that are dead marks them for all others.
    explain(hot, mode)
    plan = explain(hot, mode)
    assert buffers(plan) <= hot.most, outline(plan)
