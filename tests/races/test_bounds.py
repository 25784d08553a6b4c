"""No more calls of a queue are on their way to its workers than the setting says, however many passes run at once."""

from functools import partial

import pytest
from pytest_django import Settings

from dispatcher import engine
from dispatcher.lifecycle import finish
from dispatcher.lifecycle.claim import claim
from dispatcher.models import CallQueue, Lane
from dispatcher.request import Call
from dispatcher.states import State
from tests.builders import dispatched
from tests.races.audit import audit
from tests.races.lockstep import STOP_PASSES, actors, at_once, concurrent, holding
from tests.races.traffic import declare_tenants, only_work, write

pytestmark = concurrent


@pytest.mark.parametrize("ahead", [7, 100])
def test_sixteen_passes_and_senders_at_once_never_exceed_the_bound(settings: Settings, ahead: int) -> None:
    settings.DISPATCHER = {"dispatch_ahead": ahead}
    declare_tenants(8)
    write([[f"tenant:{number % 8}"] for number in range(200)])
    lanes = list(Lane.objects.values_list("id", flat=True))

    def send(number: int) -> None:
        for _ in range(10):
            CallQueue.objects.send("noop", keys=[f"tenant:{number % 8}"])

    passes = [partial(engine.dispense, lanes=lanes[number % 4 :], most=10) for number in range(8)]
    at_once(*passes, *[partial(send, number) for number in range(8)])
    assert ahead - 32 <= dispatched() <= ahead
    audit(has_ended=False)


def test_a_backlog_behind_the_bound_drains_by_hand_over_alone(settings: Settings) -> None:
    settings.DISPATCHER = {"dispatch_ahead": 6}
    declare_tenants(12)
    CallQueue.objects.send_many(Call(task="noop", keys=[f"tenant:{number % 12}"]) for number in range(120))
    at_once(*[only_work] * 6)
    audit()


def test_a_claim_and_finish_that_come_while_a_pass_holds_a_lane_are_seen_by_it(settings: Settings) -> None:
    settings.DISPATCHER = {"dispatch_ahead": 1}
    declare_tenants(2)
    (first,) = CallQueue.objects.send_many([Call(task="noop", keys=["tenant:0"])])
    first = CallQueue.objects.get(id=first.id)
    (waiting,) = write([["tenant:1"]])
    with actors(1) as (sender,), holding(STOP_PASSES) as gate:
        passing = sender.begin(engine.dispense, lanes=[waiting.lane_id])
        sender.wait_blocked(by=gate)
        claim(first.id, first.ticket)
        released = finish.complete(first.id, first.ticket, result=None)
        # Nothing is held yet, so no call is there to be let go on.
        assert engine.hand_over(released.keys, released.lane_id) == 0
        gate.rollback()
        assert passing.result() == 1
    assert CallQueue.objects.get(id=waiting.id).state == State.DISPATCHED
    audit(has_ended=False)
