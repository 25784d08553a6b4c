"""Claim: a start that was overslept, or whose answer came late, is given up for a later one."""

from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from time import monotonic
from typing import Any
from uuid import uuid4

import pytest
from django.db.models import Max

from dispatcher import api
from dispatcher.audit import audit
from dispatcher.engine import attempt
from dispatcher.lifecycle import claim, finish
from dispatcher.lifecycle.claim import Claimed, Refused
from dispatcher.models import CallQueue, RateLimitKey, Slot, Window
from dispatcher.states import State
from tests.builders import (
    SECOND,
    T0,
    admitted,
    at,
    go,
    key,
    next_start,
    seen,
    ticket_of,
    waiting,
)

pytestmark = [pytest.mark.django_db, pytest.mark.pooler]


def claimed(call: CallQueue, *, now: datetime = T0) -> Claimed:
    made = claim.claim(call.id, ticket_of(seen(call)), now=now)
    assert isinstance(made, Claimed)
    return made


@pytest.mark.parametrize("is_claimed", [True, False])
def test_a_throttle_far_below_a_cost_keeps_its_next_start_within_the_calendar(*, is_claimed: bool) -> None:
    key("api")
    call = admitted(costs={"api": 2**31 - 1})
    api.limit("api", {"throttle": (1, "P366D")})
    if is_claimed:
        claimed(call, now=at(1))
    else:
        finish.complete(call.id, ticket_of(call), result=None, now=at(1))
    assert timedelta(days=10_000) < next_start(RateLimitKey.objects.get()) - T0 < timedelta(days=12_000)
    assert audit().is_ok


def test_the_lease_of_a_throttled_call_begins_with_its_start(settings: Any) -> None:
    settings.DISPATCHER = {"horizon": 60, "lead": 0, "run_lease": 30}
    key("api", throttle=(1, 10))
    calls = [waiting("api") for _ in range(2)]
    go(*calls)
    for call in calls:
        claimed(call)
    assert Slot.objects.get(call=calls[1]).lease_until == at(40)
    assert seen(calls[1]).started_at == at(10)


def test_a_start_that_was_overslept_is_given_up_for_a_later_one(settings: Any) -> None:
    settings.DISPATCHER = {"horizon": 60, "lead": 0}
    key("api", throttle=(1, 1), rate=(10, 100))
    calls = [waiting("api") for _ in range(2)]
    go(*calls)
    claim_id = uuid4()
    won = [claim.claim(call.id, ticket_of(call), claim_id=claim_id, now=T0) for call in map(seen, calls)]
    assert [claimed.start_at for claimed in won if isinstance(claimed, Claimed)] == [T0, at(1)]
    again = claim.restart(calls[0].id, ticket_of(seen(calls[0])), claim_id=claim_id, now=at(0.5))
    assert isinstance(again, Claimed)
    assert (again.start_at, again.attempt) == (at(2), 1)
    assert (seen(calls[0]).started_at, seen(calls[0]).state) == (at(2), State.ACTIVE)
    assert claim.restart(calls[0].id, uuid4(), claim_id=claim_id, now=at(0.5)) is Refused.STALE
    assert claim.restart(calls[0].id, ticket_of(seen(calls[0])), claim_id=uuid4(), now=at(0.5)) is Refused.STALE


def test_a_start_that_its_window_has_forgotten_is_not_given_again_but_the_room_is_asked_for_again() -> None:
    key("api", rate=(1, 1))
    key("hour", rate=(10, 3_600))
    call, other = waiting("api", "hour"), waiting("api")
    go(call, other)
    claim_id, ticket = uuid4(), ticket_of(seen(call))
    claim.claim(call.id, ticket, claim_id=claim_id, now=T0)
    late = partial(claim.restart, call.id, ticket, claim_id=claim_id)
    # While it counts, its room is its own, and another start may be had for it.
    assert isinstance(late(now=at(0.9)), Claimed)
    # When it counts no more, the room may be another's by now.
    assert late(now=at(1.9)) is Refused.KEY_CLOSED
    assert (seen(call).state, seen(call).started_at) == (State.ACTIVE, at(0.9))
    assert sum(Window.objects.filter(key__name="api").values_list("cost", flat=True)) == 2


def test_a_start_that_may_come_late_keeps_all_that_it_counts_in_as_far_off(settings: Any) -> None:
    settings.DISPATCHER = {"horizon": 60, "lead": 0}
    row = key("api", throttle=(1, 1), rate=(10, 100))
    call = waiting("api")
    go(call)
    claim_id, ticket = uuid4(), ticket_of(seen(call))
    claim.claim(call.id, ticket, claim_id=claim_id, now=T0)
    again = claim.restart(call.id, ticket, claim_id=claim_id, slack=3 * SECOND, now=at(1))
    assert isinstance(again, Claimed)
    assert (again.start_at, again.slack) == (at(1), 3 * SECOND)
    assert next_start(row) == at(1 + 3 + 1)
    assert Window.objects.aggregate(last=Max("last_start_at"))["last"] == at(1 + 3)


@pytest.mark.parametrize(
    ("limits", "lateness"),
    [
        ({"is_paced": True}, 0.002),
        ({"is_counted": True}, 0.4),
        ({"is_paced": True, "is_counted": True}, 0.002),
        ({}, 4),
    ],
)
def test_how_late_a_start_may_come(settings: Any, limits: dict[str, bool], lateness: float) -> None:
    settings.DISPATCHER = {"margin": 0.8, "run_lease": 8, "heartbeat": 4}
    assert Claimed(attempt=1, claim_id=uuid4(), start_at=T0, retry=None, **limits).lateness == lateness * SECOND
    forgiving = Claimed(attempt=1, claim_id=uuid4(), start_at=T0, retry=None, slack=SECOND, **limits)
    assert forgiving.lateness == min(lateness + 1, 4) * SECOND


def test_a_machine_that_is_always_late_starts_a_call_when_its_limits_allow_for_it(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DISPATCHER = {"horizon": 60}
    row = key("api", throttle=(100, 1))
    call = waiting("api")
    go(call, now=None)
    is_in_time = claim.is_in_time
    tried = []

    def late(made: Claimed) -> bool:
        tried.append(made.lateness)
        return is_in_time(replace(made, start_at=made.start_at - 20 * claim._LATE))  # noqa: SLF001

    monkeypatch.setattr(claim, "is_in_time", late)
    made = attempt.claim_in_time(call.id, ticket_of(seen(call)), claim_id=uuid4())
    assert isinstance(made, Claimed)
    assert len(tried) > 1
    assert tried == [2**n * claim._LATE for n in range(len(tried))]  # noqa: SLF001
    assert next_start(row) == made.start_at + SECOND / 100 + made.slack


def test_a_start_that_has_come_already_is_not_slept_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim, "sleep", lambda seconds: pytest.fail(f"slept {seconds} s"))
    assert claim.is_in_time_at(monotonic(), 1.0)
