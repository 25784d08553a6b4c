"""A call that is too dear just now shuts its key for as long as it waits at the head of its lane, and no longer."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from dispatcher import api, engine
from dispatcher.celery import revoke
from dispatcher.lifecycle import place, send
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.request import Call
from dispatcher.states import State
from tests.builders import MARGIN, SECOND, at, committed, go, key, lane_of, seen, start, started, states, waiting

pytestmark = [committed, pytest.mark.pooler]

HOUR = 3600
LIMITS: list[dict[str, Any]] = [{"rate": (10, HOUR)}, {"concurrency": 10}]
every_limit = pytest.mark.parametrize("limits", LIMITS, ids=str)


def spend(cost: int, **limits: Any) -> None:
    """Make the key `api`, and start a call of this cost in a lane of its own."""
    for name in ("tenant", "other"):
        key(name)
    key("api", **limits)
    started(costs={"api": cost, "other": 1})


def shut(limits: dict[str, Any], **fields: Any) -> tuple[CallQueue, list[CallQueue]]:
    """Return a call that costs 5 where only 2 are left, and cheap ones behind it, in its lane and in another one."""
    spend(8, **limits)
    dear = waiting(costs={"api": 5}, **fields)
    cheap = [waiting("api"), waiting("api", "tenant")]
    assert go(dear, *cheap, now=at(1)) == []
    assert {lane_of(call).parked_on.name for call in (dear, *cheap)} == {"api"}  # type: ignore[union-attr]
    return dear, cheap


@every_limit
def test_those_behind_a_call_that_expires_go_in_the_same_tick(limits: dict[str, Any]) -> None:
    dear, cheap = shut(limits, expires_at=at(10))
    assert engine.tick(now=at(9)) == 0
    assert engine.tick(now=at(10)) == 2
    assert states([dear, *cheap]) == [State.DISCARDED, State.DISPATCHED, State.DISPATCHED]


@every_limit
def test_a_call_in_another_lane_goes_when_the_only_one_of_a_lane_expires(limits: dict[str, Any]) -> None:
    spend(8, **limits)
    dear, cheap = waiting(costs={"api": 5}, expires_at=at(10)), waiting("api", "tenant")
    assert go(dear, cheap, now=at(1)) == []
    assert engine.tick(now=at(10)) == 1
    assert states([cheap]) == [State.DISPATCHED]


def test_a_key_without_any_room_opens_for_the_cheap_when_the_dear_call_has_expired() -> None:
    spend(5, rate=(10, 60))
    started(costs={"api": 5, "other": 1}, now=at(30))
    dear, cheap = waiting(costs={"api": 8}, expires_at=at(40)), waiting("api", "tenant")
    assert go(dear, cheap, now=at(31)) == []
    assert RateLimitKey.objects.get(name="api").opens_at == at(90) + MARGIN
    assert engine.tick(now=at(40)) == 0
    assert RateLimitKey.objects.get(name="api").opens_at == at(60) + MARGIN


def test_a_cheap_call_that_expires_does_not_open_the_key_of_a_dear_one() -> None:
    dear, cheap = shut(LIMITS[0])
    opens_at = RateLimitKey.objects.get(name="api").opens_at
    CallQueue.objects.filter(id__in=[call.id for call in cheap]).update(expires_at=at(10))
    assert engine.tick(now=at(10)) == 0
    assert lane_of(dear).parked_on is not None
    assert RateLimitKey.objects.get(name="api").opens_at == opens_at


# What people and senders do


@every_limit
@pytest.mark.parametrize("verb", [api.cancel, revoke.revoke])
def test_those_behind_a_call_that_is_cancelled_go_at_once(limits: dict[str, Any], verb: Callable[..., Any]) -> None:
    dear, cheap = shut(limits)
    verb([dear.id])
    assert states([dear, *cheap]) == [State.CANCELLED, State.DISPATCHED, State.DISPATCHED]


def test_a_cheap_call_that_is_to_run_now_goes_before_a_dear_one() -> None:
    dear, cheap = shut(LIMITS[0])
    api.run_now([cheap[0].id])
    assert states([dear, cheap[0]]) == [State.AVAILABLE, State.DISPATCHED]


# Calls that come to the head of a lane that is parked


def test_a_cheap_call_whose_time_comes_goes_before_a_dear_one_that_was_sent_later() -> None:
    spend(8, **LIMITS[0])
    cheap, dear = waiting("api", scheduled_at=at(10)), waiting(costs={"api": 5})
    assert go(dear, now=at(1)) == []
    assert engine.tick(now=at(10)) == 1
    assert states([cheap, dear]) == [State.DISPATCHED, State.AVAILABLE]


def test_a_call_whose_time_comes_behind_a_dear_one_does_not_open_its_key() -> None:
    spend(8, **LIMITS[0])
    dear, cheap = waiting(costs={"api": 5}), waiting("api", scheduled_at=at(10))
    assert go(dear, now=at(1)) == []
    opens_at = RateLimitKey.objects.get(name="api").opens_at
    assert engine.tick(now=at(10)) == 0
    assert states([cheap]) == [State.AVAILABLE]
    assert RateLimitKey.objects.get(name="api").opens_at == opens_at


def test_a_cheap_call_that_gets_its_lane_late_goes_before_a_dear_one_that_was_sent_later() -> None:
    key("api", rate=(10, HOUR))
    running = waiting(costs={"api": 8})
    assert go(running, now=timezone.now()) == [running.id]
    start(seen(running), now=timezone.now())
    with transaction.atomic():
        # In a transaction it is written without a lane, and this sender dies before its hook.
        (cheap,) = send.write([send.draft(Call(task="noop", keys=["api"]), task="noop", queue="late")])
    assert cheap.lane_id is None
    (dear,) = CallQueue.objects.send_many([Call(task="noop", keys={"api": 5}, queue="late")])
    assert lane_of(dear).parked_on is not None
    engine.place_and_dispense([cheap.id], lock_wait=SECOND)
    assert states([cheap, dear]) == [State.DISPATCHED, State.AVAILABLE]
    assert place.next_unplaced(place.FIRST, 10).calls == []
