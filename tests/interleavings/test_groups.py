"""Any of several keys: whatever the order of the steps, no member over its limit, and no call left with room."""

from functools import partial

from dispatcher import engine
from dispatcher.api import any_of
from dispatcher.models import RateLimitKey
from tests.interleavings.actions import all_are_admitted, finish_one, no_call_waits, running, slowly, trip
from tests.interleavings.stepper import explore
from tests.races.lockstep import concurrent
from tests.races.traffic import write

pytestmark = concurrent

EGRESS = any_of("egress:*")


def test_the_end_of_a_call_that_names_a_member_and_a_trip_that_parks_a_lane_on_the_group() -> None:
    RateLimitKey.objects.declare("egress:1", concurrency=1)
    call = running("egress:1")
    write([[EGRESS]])
    work = {"worker": partial(slowly, partial(finish_one, call)), "dispenser": partial(slowly, engine.dispense)}
    explore(work, all_are_admitted, at_least=10)


def test_a_trip_over_the_group_and_one_over_a_member() -> None:
    """Each of them skips the member that the other one has locked; both calls have room."""
    for number in (1, 2):
        RateLimitKey.objects.declare(f"egress:{number}", concurrency=1)
    write([[EGRESS]], queue="one")
    write([["egress:1"]], queue="other")
    trip(queue="nothing")
    explore({"one": partial(trip, "one"), "other": partial(trip, "other")}, no_call_waits, at_least=10)
