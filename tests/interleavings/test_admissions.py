"""Invariant 1: two trips at once never start more than the key has room for; in every order of steps."""

from functools import partial
from typing import Any

import pytest

from dispatcher.lifecycle.claim import Claimed, claim
from dispatcher.models import CallQueue, RateLimitKey, Slot, Start
from dispatcher.states import State
from tests.builders import erase
from tests.interleavings.actions import come_along, finish_one, running, send_in_transaction, slowly, trip
from tests.interleavings.stepper import explore, wide
from tests.races.lockstep import concurrent
from tests.races.traffic import in_flight, write

pytestmark = concurrent

ONE = {"concurrency": {"concurrency": 1}, "rate": {"rate": (1, 3600)}, "throttle": {"throttle": (1, 3600)}}


def one_is_in(*_: Any) -> None:
    """Check that there is one, and that no trip that comes after lets another in."""
    assert CallQueue.objects.in_flight().count() <= 1
    come_along()
    assert CallQueue.objects.in_flight().count() == 1
    assert Slot.objects.filter(key__name="api").count() == 1


@pytest.mark.parametrize("limit", ONE)
def test_two_trips_over_lanes_that_share_a_key(limit: str) -> None:
    RateLimitKey.objects.declare("api", **ONE[limit])
    for queue in ("one", "other"):
        write([["api"]], queue=queue)
        trip(queue="nothing")  # reads the note
    explore({"one": partial(trip, "one"), "other": partial(trip, "other")}, one_is_in, at_least=10)


@pytest.mark.parametrize("limit", ["concurrency", "rate"])
def test_two_sends(limit: str) -> None:
    RateLimitKey.objects.declare("api", **ONE[limit])
    erase(*write([["api"]]))
    sending = partial(CallQueue.objects.send, "noop", keys=["api"])
    explore({"one": sending, "other": sending}, one_is_in, at_least=20)


@wide
@pytest.mark.parametrize("limit", ["concurrency", "rate"])
def test_a_trip_and_two_sends(limit: str) -> None:
    RateLimitKey.objects.declare("api", **ONE[limit])
    write([["api"]])
    sending = partial(send_in_transaction, "api")
    explore({"dispenser": trip, "one": sending, "other": sending}, one_is_in, at_least=150)


def test_a_start_is_counted_while_it_passes_from_the_slot_to_the_window() -> None:
    RateLimitKey.objects.declare("api", rate=(1, 3600))
    (call,) = in_flight("api")
    write([["api"]])

    def live() -> bool:
        is_started = slowly(lambda: isinstance(claim(call.id, call.ticket), Claimed))
        return is_started and finish_one(call)

    def none_is_let_in(is_finished: bool, _: object) -> None:
        come_along()
        if is_finished:
            assert not CallQueue.objects.in_flight()
        assert sum(Start.objects.values_list("cost", flat=True)) == is_finished

    explore({"worker": live, "dispenser": trip}, none_is_let_in, at_least=5)


def test_an_end_lets_one_in_and_not_two() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    call = running("api")
    CallQueue.objects.send("noop", keys=["api"])

    def one_is_let_in(*results: Any) -> None:
        assert CallQueue.objects.get(id=call.id).state == State.COMPLETED
        one_is_in(*results)

    cast = {"worker": partial(slowly, partial(finish_one, call)), "sender": partial(send_in_transaction, "api")}
    explore(cast, one_is_let_in, at_least=40)
