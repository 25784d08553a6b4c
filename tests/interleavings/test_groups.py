"""Any of several keys: whatever the order of the steps, no member over its limit, and no call left with room."""

from functools import partial

from dispatcher.api import any_of
from dispatcher.models import RateLimitKey
from tests.interleavings.actions import all_are_admitted, dispense, finish_one, no_call_waits, running
from tests.interleavings.stepper import explore
from tests.races.lockstep import concurrent
from tests.races.traffic import write

pytestmark = concurrent

EGRESS = any_of("egress:*")


def test_the_finish_of_a_call_that_names_a_member_and_a_pass_that_parks_a_lane_on_the_group() -> None:
    RateLimitKey.objects.declare("egress:1", concurrency=1)
    call = running("egress:1")
    (waiting,) = write([[EGRESS]])
    explore({"worker": partial(finish_one, call), "dispenser": dispense(waiting)}, all_are_admitted, at_least=100)


def test_a_pass_over_the_group_and_one_over_a_member() -> None:
    """Each of them skips the member that the other one has locked; both calls have room."""
    for number in (1, 2):
        RateLimitKey.objects.declare(f"egress:{number}", concurrency=1)
    several, named = write([[EGRESS], ["egress:1"]])
    explore({"one": dispense(several), "other": dispense(named)}, no_call_waits, at_least=100)
