"""No more calls of a queue are on their way to its workers than the setting says, whatever dispenses at once."""

from functools import partial

import pytest
from pytest_django import Settings

from dispatcher import engine
from dispatcher.models import CallQueue
from tests.builders import dispatched
from tests.races.audit import audit
from tests.races.lockstep import at_once, concurrent
from tests.races.traffic import declare_tenants, write

pytestmark = concurrent


@pytest.mark.parametrize("ahead", [7, 100])
def test_eight_dispensers_and_senders_at_once_never_exceed_the_bound(settings: Settings, ahead: int) -> None:
    settings.DISPATCHER = {"dispatch_ahead": ahead}
    declare_tenants(8)
    write([[f"tenant:{number % 8}"] for number in range(200)])

    def send(number: int) -> None:
        for _ in range(10):
            CallQueue.objects.send("noop", keys=[f"tenant:{number % 8}"])

    at_once(*[partial(engine.dispense, most=10)] * 8, *[partial(send, number) for number in range(8)])
    assert ahead - 32 <= dispatched() <= ahead
    audit(has_ended=False)
