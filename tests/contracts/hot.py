"""What runs for each call and at each tick, with the most buffers that it may touch in a large system."""

from typing import Any, Final
from uuid import UUID

from dispatcher import states
from tests.contracts.large import CALLS, LANES, NOW, call_id
from tests.contracts.plans import LEASE, MARGIN, PASS, Hot, bulk, ends, hot

DISPATCHED: Final = call_id(CALLS + 100)
RUNNING: Final = call_id(CALLS + 300)


def trips(calls: int = CALLS) -> dict[str, Hot]:
    """Return trips of workers in a system of that many calls, with bounds."""
    running, last = call_id(calls + 300), call_id(calls + 400)
    direct: dict[str, Any] = {"queues": ["direct"]}
    publishing: dict[str, Any] = {"queues": ["served"], "becomes": "dispatched", "worker": None, "needs_worker": True}
    return {
        "a start": hot("take", 200, **direct),
        "an end and a start": hot("take", 250, **direct, **ends(running)),
        "an end, where half of the lanes are parked on its key": hot("take", 350, **direct, **ends(last)),
        "sixteen starts": hot("take", 700, **direct, room=16),
        "a dispatch": hot("take", 200, **publishing),
        "a look at a key, where half of the lanes are parked": hot("take", 200, **direct, keys=[2]),
    }


NOTHING: Final = hot("take", 20, queues=["nowhere"])
ONE: Final = {"call": DISPATCHED, "ticket": DISPATCHED}
WORKER: Final = {
    "id": UUID(int=9),
    "name": "here",
    "host": "here",
    "pid": 1,
    "pool": "prefork",
    "processes": 8,
    "serves": LEASE,
}
AUDIT: Final = {
    "most": 1_000,
    "newest": 2_000,
    "late": LEASE,
    "needs_worker": True,
    "now": NOW,
    "periodic": ["dispatcher.tick"],
    "periodic_late": [LEASE],
}
DUE: Final = {"queues": None, "states": [*states.WAITING, "retryable"]}
OF_A_CALL: Final = [
    hot("send_calls", 200, PASS, **bulk("key:1500", "key:1600")),
    hot("send_calls", 12_000, PASS, **bulk(*(f"key:{LANES - n}" for n in range(500)))),
    hot("wake_workers", 100, calls=[call_id(1)], queues=["other"]),
    hot("claim_call", 200, **ONE),
    hot("publish_calls", 30, PASS, calls=[DISPATCHED], tickets=[DISPATCHED]),
    hot("requeue_call", 100, **ONE, claim=None, reason="unused"),
    hot("mark_process", 30, process=UUID(int=1), worker=UUID(int=1), queues=["direct"]),
    hot("unmark_process", 30, process=UUID(int=1)),
    hot("ready_queues", 50),
]
OF_A_TICK: Final = [
    hot("find_due", 50),
    hot("find_due", 100, now=NOW),
    hot("wake_due", 20, PASS, **DUE),
    hot("wake_due", 1_000, PASS, **DUE, now=NOW),
    hot("discard_expired", 20, PASS, **DUE),
    hot("discard_expired", 1_000, PASS, **DUE, now=NOW),
    hot("unpublished_calls", 20, after=MARGIN),
    hot("note_stranded", 1_500, PASS, now=NOW),
    hot("release_oversized", 100, PASS),
    hot("record_heartbeat", 200, **WORKER, queues=["served"], calls=[RUNNING], tickets=[RUNNING], now=NOW),
]
OF_A_WHILE: Final = [
    hot("lock_expired", 8_000, now=NOW + LEASE, serves_http=True),
    hot("repeat_calls", 5_000, now=NOW + LEASE),
    hot("free_orphans", 5_000, PASS, now=NOW),
    hot("lock_unserved", 2_000, now=NOW),
    hot("trim_starts", 10_000, PASS, now=NOW),
    hot("unused_lanes", 6_000, PASS, ids=list(range(1, 501)), now=NOW),
    hot("unused_keys", 6_000, PASS, ids=list(range(1, 501)), now=NOW),
    hot("report_unstarted", 1_000, now=NOW),
    hot("report_runnable", 200, now=NOW, queues=["direct"]),
    hot("unreported_results", 50, after=NOW, after_id=call_id(0), until=NOW + LEASE),
    hot("audit_in_flight", 12_000, PASS, **AUDIT),  # six rules: each had 6,000 by itself
    *(hot(f"audit_{rule}", 6_000, PASS, **AUDIT) for rule in ("over_limit", "order", "unserved", "oversized", "notes")),
]
