"""Any of several keys: whatever the order of the steps, no member over its limit, and no call left with room."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.utils import timezone

from dispatcher import api
from dispatcher.api import any_of
from dispatcher.models import RateLimitKey
from tests.interleavings.actions import all_are_admitted, dispense, finish_one, no_call_waits, running
from tests.interleavings.stepper import explore, wide
from tests.races.lockstep import concurrent
from tests.races.traffic import write

pytestmark = concurrent

EGRESS = any_of("egress:*")


def test_the_finish_of_a_call_that_names_a_member_and_a_pass_that_parks_a_lane_on_the_group() -> None:
    RateLimitKey.objects.declare("egress:1", concurrency=1)
    call = running("egress:1")
    (waiting,) = write([[EGRESS]])
    explore({"worker": partial(finish_one, call), "dispenser": dispense(waiting)}, all_are_admitted, at_least=100)


OPENINGS: dict[str, Callable[[], Any]] = {
    "resume": partial(api.resume, "egress:1"),
    "limit": partial(api.limit, "egress:1", {"concurrency": 1}),
    "end_override": partial(api.end_override, "egress:1"),
}


@wide
@pytest.mark.parametrize("verb", OPENINGS)
def test_an_opening_of_a_member_and_a_pass_that_parks_a_lane_on_the_group(verb: str) -> None:
    RateLimitKey.objects.declare("egress:1", concurrency=0 if verb == "limit" else 1)
    if verb == "resume":
        api.pause("egress:1")
    if verb == "end_override":
        api.override("egress:1", until=timezone.now() + timedelta(hours=1), concurrency=0)
    (waiting,) = write([[EGRESS]])
    explore({"admin": OPENINGS[verb], "dispenser": dispense(waiting)}, all_are_admitted, at_least=300)


def test_a_pass_over_the_group_and_one_over_a_member() -> None:
    """Each of them skips the member that the other one has locked; both calls have room."""
    for number in (1, 2):
        RateLimitKey.objects.declare(f"egress:{number}", concurrency=1)
    several, named = write([[EGRESS], ["egress:1"]])
    explore({"one": dispense(several), "other": dispense(named)}, no_call_waits, at_least=100)
