"""Any of several keys: no member over its limit, all room used, no wake-up lost, whatever trips go side by side."""

from functools import partial

from dispatcher import api, engine
from dispatcher.api import any_of
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.states import State
from tests.races.audit import audit, use_now
from tests.races.lockstep import at_once, concurrent, holding
from tests.races.traffic import state_of, write

pytestmark = concurrent

EGRESS = any_of("egress:*")
LOCK = "SELECT FROM dispatcher_ratelimitkey WHERE name = %s FOR NO KEY UPDATE"


def test_a_resume_while_a_trip_decides_is_seen_by_one_of_them() -> None:
    RateLimitKey.objects.declare("egress:1")
    for _ in range(25):
        api.pause("egress:1")
        (waiting,) = write([[EGRESS]])
        at_once(partial(api.resume, "egress:1"), engine.dispense)
        engine.tick()
        assert state_of(waiting) == State.DISPATCHED
        api.cancel(waiting)


# A member that another transaction keeps locked


def test_a_locked_member_is_passed_over() -> None:
    for number in range(4):
        RateLimitKey.objects.declare(f"egress:{number}", concurrency=1)
    write([[EGRESS]] * 4)
    with holding(LOCK, ["egress:1"]):
        assert engine.dispense() == 3
        assert use_now(["egress:1"]) == {"egress:1": 0}
    engine.tick()
    assert use_now(["egress:1"]) == {"egress:1": 1}
    audit(has_ended=False)


def test_a_locked_member_stops_no_other_calls_of_the_queue() -> None:
    RateLimitKey.objects.declare("egress:1")
    RateLimitKey.objects.declare("other")
    with holding(LOCK, ["egress:1"]):
        high = CallQueue.objects.send("noop", keys=[EGRESS], priority=5)
        low = CallQueue.objects.send("noop", keys=["other"])
        engine.tick()
        assert [state_of(high), state_of(low)] == [State.AVAILABLE, State.DISPATCHED]
    engine.tick()
    assert state_of(high) == State.DISPATCHED
