"""Any of several keys: no member over its limit, all room used, no wake-up lost, whatever passes go side by side."""

import random
from functools import partial

import pytest

from dispatcher import api, engine
from dispatcher.api import any_of
from dispatcher.lifecycle import admit
from dispatcher.models import CallQueue, Lane, RateLimitKey
from dispatcher.request import Call
from dispatcher.states import State
from tests.races.audit import audit, use_now
from tests.races.lockstep import actors, at_once, concurrent, holding
from tests.races.traffic import declare_tenants, only_work, state_of, write

pytestmark = concurrent

EGRESS = any_of("egress:*")
NAMES = [f"egress:{number}" for number in range(4)]
LOCK = "SELECT FROM dispatcher_ratelimitkey WHERE name = %s FOR NO KEY UPDATE"


def declare(**limits: object) -> list[int]:
    return [RateLimitKey.objects.declare(name, **limits).pk for name in NAMES]


def send(count: int, *, lanes: int = 12, direct: float = 0.2, costs: tuple[int, ...] = (1,)) -> None:
    """Send calls of so many tenants that spend any member, some of them the one that they name."""
    declare_tenants(lanes)
    dice = random.Random(3)  # noqa: S311 -- not for secrets

    def call(number: int) -> Call:
        key = dice.choice(NAMES) if dice.random() < direct else EGRESS
        return Call(task="noop", keys={f"tenant:{number % lanes}": 1, key: dice.choice(costs)})

    CallQueue.objects.send_many(map(call, range(count)))


@pytest.mark.slow
def test_a_backlog_drains_by_hand_over_alone() -> None:
    """Calls that name a member open its group, and calls of the group the member, without a tick."""
    declare(concurrency=1)
    send(200, direct=0.5)
    at_once(*[only_work] * 8)
    audit(is_fifo=True)


def test_a_resume_while_a_pass_decides_is_seen_by_one_of_them() -> None:
    RateLimitKey.objects.declare("egress:1")
    for _ in range(25):
        api.pause("egress:1")
        (waiting,) = write([[EGRESS]])
        at_once(partial(api.resume, "egress:1"), partial(engine.dispense, lanes=[waiting.lane_id]))
        assert state_of(waiting) == State.DISPATCHED
        api.cancel(waiting)


# A member that another transaction keeps locked


@pytest.mark.usefixtures("hasty_passes")
def test_a_locked_member_is_passed_over() -> None:
    declare(concurrency=1)
    calls = write([[EGRESS]] * 4)
    with holding(LOCK, ["egress:1"]):
        assert engine.dispense(lanes=[calls[0].lane_id]) == 3
        assert use_now(["egress:1"]) == {"egress:1": 0}
        assert Lane.objects.get().is_awake, "the first tick after the commit serves it"
    engine.tick()
    assert use_now(["egress:1"]) == {"egress:1": 1}
    audit(has_ended=False)


@pytest.mark.usefixtures("hasty_passes")
def test_a_locked_member_stops_no_other_calls_of_the_queue() -> None:
    RateLimitKey.objects.declare("egress:1")
    RateLimitKey.objects.declare("other")
    with holding(LOCK, ["egress:1"]):
        high = CallQueue.objects.send("noop", keys=[EGRESS], priority=5)
        low = CallQueue.objects.send("noop", keys=["other"])
        engine.tick()
        engine.tick()
        assert [state_of(high), state_of(low)] == [State.AVAILABLE, State.DISPATCHED]
    engine.tick()
    assert state_of(high) == State.DISPATCHED


def test_a_pass_waits_for_the_member_that_a_short_transaction_has_locked() -> None:
    RateLimitKey.objects.declare("egress:1")
    (call,) = write([[EGRESS]])
    with actors(1) as (sender,), holding(LOCK, ["egress:1"]) as other:
        dispensing = sender.begin(engine.dispense, lanes=[call.lane_id])
        sender.wait_blocked(by=other)
        other.rollback()
        assert dispensing.result() == 1
    assert admit.stuck_keys() == set()
