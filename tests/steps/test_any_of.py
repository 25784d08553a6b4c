"""Any of several budgets: which key a call gets, who waits, and what lets it go on."""

from typing import Any

import pytest

from dispatcher import api
from dispatcher.api import any_of
from dispatcher.errors import CallInvalid, CallNeverRuns, UnknownKey
from dispatcher.lifecycle import admit
from dispatcher.models import CallQueue, RateLimitKey, Slot
from tests.builders import SECOND, T0, at, committed, end, go, key, lane_of, seen, slots_of, start, states, waiting

pytestmark = committed

EGRESS = any_of("egress:*")


def group(name: str = "egress:*") -> RateLimitKey:
    return RateLimitKey.objects.get(name=name)


def chosen(call: CallQueue) -> str | None:
    keys = seen(call).chosen_keys
    return None if keys is None else keys["egress:*"]


# What a call gets


def test_a_call_holds_its_other_keys_the_group_and_one_of_the_members() -> None:
    provider, one = key("api"), key("egress:1", concurrency=5)
    call = waiting(costs={"api": 1, EGRESS: 3})
    assert go(call) == [call.id]
    assert chosen(call) == "egress:1"
    assert slots_of(call) == {provider.id: 1, one.id: 3, group().id: 3}


def test_calls_spread_over_the_members_and_use_all_room() -> None:
    for number in (1, 2, 3):
        key(f"egress:{number}", concurrency=2)
    calls = [waiting(EGRESS) for _ in range(8)]
    assert len(go(*calls)) == 6
    assert [chosen(call) for call in calls[:3]] == ["egress:1", "egress:2", "egress:3"]
    assert sorted(filter(None, map(chosen, calls))) == [f"egress:{number}" for number in (1, 1, 2, 2, 3, 3)]
    assert lane_of(calls[0]).parked_on_id == group().id
