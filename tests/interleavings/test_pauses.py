"""In every order of steps: what began after a pause returned does not start; what was admitted goes back unspent."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from dispatcher import engine
from dispatcher.ending import InFlight
from dispatcher.engine import ends
from dispatcher.lifecycle import control
from dispatcher.lifecycle.claim import Claimed, Refused, claim
from dispatcher.lifecycle.finish import Requeue
from dispatcher.models import CallQueue, LaneSite, RateLimitKey, Slot
from dispatcher.states import State
from tests.interleavings.actions import come_along
from tests.interleavings.stepper import explore
from tests.races.lockstep import concurrent
from tests.races.traffic import in_flight, write

pytestmark = concurrent

KINDS = {"plain": {"concurrency": 2}, "throttled": {"throttle": (1000, 1)}}
CLOSINGS: dict[str, Callable[[], Any]] = {
    "pause": partial(control.pause, "api"),
    "block": partial(control.block, timedelta(hours=1), names=["api"]),
    "limit": partial(control.limit, "api", {"concurrency": 0}),
    "override": partial(control.override, "api", {"concurrency": 0}, timezone.now() + timedelta(days=1)),
}


def close(verb: str) -> None:
    """Close the key as a caller does who has more to write before it commits."""
    with transaction.atomic():
        CLOSINGS[verb]()


def is_closed() -> bool:
    key = RateLimitKey.objects.get(name="api")
    return key.is_paused or key.blocked_until is not None or 0 in {key.concurrency, key.override_concurrency}


def look_and_claim(call: CallQueue) -> tuple[bool, bool]:
    """Claim; return whether the key was seen closed before, and whether the call started."""
    was_closed = is_closed()
    claimed = claim(call.id, call.ticket)
    if isinstance(claimed, Refused):
        ends.requeue([InFlight(call_id=call.id, ticket=call.ticket)], Requeue.UNUSED)
    return was_closed, isinstance(claimed, Claimed)


def check(call: CallQueue, was_closed: bool, is_started: bool) -> None:
    row = CallQueue.objects.get(id=call.id)
    if is_started:
        assert not was_closed
        assert (row.state, row.attempt) == (State.ACTIVE, 1)
    else:
        assert (row.state, row.attempt, row.ticket, row.position) == (State.AVAILABLE, 0, None, call.position)
        assert not Slot.objects.filter(call=call)
        come_along()
        assert LaneSite.objects.get(lane_id=row.lane_id).place == RateLimitKey.objects.get(name="api").id


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", CLOSINGS)
def test_a_closing_and_a_claim(verb: str, kind: str) -> None:
    RateLimitKey.objects.declare("api", **KINDS[kind])
    (call,) = in_flight("api")

    def nothing_starts_late(_: None, claimed: tuple[bool, bool]) -> None:
        check(call, *claimed)

    explore(
        {"admin": partial(close, verb), "worker": partial(look_and_claim, call)},
        nothing_starts_late,
        at_least=20,
        limits_changed=True,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_pause_and_two_claims(kind: str) -> None:
    RateLimitKey.objects.declare("api", **KINDS[kind])
    calls = in_flight("api", count=2)

    def look_and_claim(call: CallQueue) -> tuple[bool, object]:
        return is_closed(), claim(call.id, call.ticket)

    def nothing_starts_late(_: None, *claims: tuple[bool, object]) -> None:
        for was_closed, claimed in claims:
            assert isinstance(claimed, Refused) or not was_closed
        started = sum(isinstance(claimed, Claimed) for _, claimed in claims)
        assert started == CallQueue.objects.filter(state=State.ACTIVE, attempt=1).count()
        assert CallQueue.objects.filter(state=State.DISPATCHED, attempt=0).count() == len(claims) - started

    one, other = (partial(look_and_claim, call) for call in calls)
    explore({"admin": partial(close, "pause"), "one": one, "other": other}, nothing_starts_late, at_least=100)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pause_that_is_taken_back_and_a_claim(kind: str) -> None:
    RateLimitKey.objects.declare("api", **KINDS[kind])
    (call,) = in_flight("api")

    def blink() -> None:
        control.pause("api")
        control.resume("api")

    def it_starts_or_is_let_in_again(_: None, claimed: tuple[bool, bool]) -> None:
        come_along()
        row = CallQueue.objects.get(id=call.id)
        if claimed[1]:
            assert (row.state, row.attempt) == (State.ACTIVE, 1)
        else:
            assert (row.state, row.attempt) == (State.DISPATCHED, 0)
            assert row.ticket != call.ticket

    explore({"admin": blink, "worker": partial(look_and_claim, call)}, it_starts_or_is_let_in_again, at_least=50)


def test_a_pause_and_a_trip() -> None:
    RateLimitKey.objects.declare("api", concurrency=2)
    (call,) = write([["api"]])

    def look_and_dispense() -> bool:
        was_closed = is_closed()
        engine.dispense()
        return was_closed

    def nothing_is_admitted_late(_: None, was_closed: bool) -> None:
        row = CallQueue.objects.get(id=call.id)
        assert row.state == State.AVAILABLE or not was_closed
        if row.state == State.DISPATCHED:
            assert claim(row.id, row.ticket) is Refused.KEY_CLOSED

    explore({"admin": partial(close, "pause"), "dispenser": look_and_dispense}, nothing_is_admitted_late, at_least=40)
