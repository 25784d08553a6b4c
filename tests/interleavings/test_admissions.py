"""Invariant 1: two who admit at once never admit more than the key has room for; in every order of steps."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from dispatcher import engine
from dispatcher.lifecycle import admit, finish
from dispatcher.lifecycle.claim import Claimed, claim
from dispatcher.models import CallQueue, Lane, RateLimitKey, Slot, Window
from dispatcher.states import State
from tests.builders import erase
from tests.interleavings.actions import finish_one, running, write_alone
from tests.interleavings.stepper import explore
from tests.races.lockstep import concurrent
from tests.races.traffic import declare_tenants, in_flight, write

pytestmark = concurrent

ONE = {"concurrency": {"concurrency": 1}, "rate": {"rate": (1, 3600)}, "throttle": {"throttle": (1, 3600)}}


def one_is_in(*results: Any) -> None:
    """Check that there is one, and that a pass for what was left waiting lets no other in."""
    assert CallQueue.objects.in_flight().count() == 1
    engine.dispense(lanes=[call.lane_id for call in results if isinstance(call, CallQueue)])
    assert CallQueue.objects.in_flight().count() == 1
    assert Slot.objects.filter(key__name="api").count() == 1


def admit_head(call: CallQueue) -> Callable[[], object]:
    """Give the work of a pass over the lane of this call, up to its commit; it waits for the lock of the key."""
    key = RateLimitKey.objects.get(name="api").id
    return partial(admit.admit, lanes=[call.lane_id], wait_for=key)


def lanes(count: int) -> list[CallQueue]:
    """Write calls into lanes of their own, all under one key, and make a lane for those without a tenant."""
    declare_tenants(count)
    return write([["api", f"tenant:{number}"] for number in range(count)])


def make_lane() -> None:
    """Make the lane of calls that spend this key alone, as a first call does."""
    erase(*write([["api"]]))


@pytest.mark.parametrize("limit", ONE)
def test_two_passes_over_lanes_that_share_a_key(limit: str) -> None:
    RateLimitKey.objects.declare("api", **ONE[limit])
    one, other = lanes(2)
    explore({"one": admit_head(one), "other": admit_head(other)}, one_is_in, at_least=50)


@pytest.mark.parametrize("limit", ["concurrency", "rate"])
def test_a_pass_and_two_lone_sends(limit: str) -> None:
    RateLimitKey.objects.declare("api", **ONE[limit])
    make_lane()
    (waiting,) = lanes(1)
    sending = partial(write_alone, "api")
    explore({"dispenser": admit_head(waiting), "one": sending, "other": sending}, one_is_in, at_least=150)


def test_a_start_is_counted_while_it_passes_from_the_slot_into_the_window() -> None:
    RateLimitKey.objects.declare("api", rate=(1, 3600))
    (call,) = in_flight("api")
    (waiting,) = lanes(1)

    def live() -> bool:
        is_started = isinstance(claim(call.id, call.ticket), Claimed)
        return is_started and finish.complete(call.id, call.ticket, result=None) is not None

    def none_is_let_in(is_finished: bool, _: object) -> None:
        assert is_finished
        engine.dispense(lanes=Lane.objects.values_list("id", flat=True))
        assert not CallQueue.objects.in_flight()
        assert sum(Window.objects.values_list("cost", flat=True)) == 1

    explore({"worker": live, "dispenser": admit_head(waiting)}, none_is_let_in, at_least=5)


def test_a_finish_lets_one_in_and_not_two() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    make_lane()
    call = running("api")
    CallQueue.objects.send("noop", keys=["api"])

    def one_is_let_in(*results: Any) -> None:
        assert CallQueue.objects.get(id=call.id).state == State.COMPLETED
        one_is_in(*results)

    cast = {"worker": partial(finish_one, call), "sender": partial(write_alone, "api")}
    explore(cast, one_is_let_in, at_least=40)
