"""Claim: who may run an attempt, when it starts, and what the start is counted in."""

from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from time import monotonic
from typing import Any
from uuid import uuid4

import pytest
from django.db.models import Max

from dispatcher import api, engine
from dispatcher.audit import audit
from dispatcher.engine import attempt
from dispatcher.lifecycle import claim, control, finish
from dispatcher.lifecycle.claim import Claimed, Refused
from dispatcher.models import CallQueue, RateLimitKey, Slot, Window
from dispatcher.states import State
from tests.builders import (
    SECOND,
    T0,
    admitted,
    at,
    erase,
    go,
    key,
    next_start,
    renew,
    seen,
    slots_of,
    snapshot,
    started,
    ticket_of,
    waiting,
)

pytestmark = [pytest.mark.django_db, pytest.mark.pooler]

MICROSECOND = timedelta(microseconds=1)


def claimed(call: CallQueue, *, now: datetime = T0) -> Claimed:
    made = claim.claim(call.id, ticket_of(seen(call)), now=now)
    assert isinstance(made, Claimed)
    return made


# The ticket


def test_a_claim_with_the_ticket_starts_the_call(settings: Any) -> None:
    settings.DISPATCHER = {"run_lease": 45}
    row = key("api", concurrency=1)
    call = admitted("api", retry={"max_attempts": 7})
    made = claimed(call, now=at(3))
    stored = seen(call)
    assert (made.attempt, made.start_at, made.is_paced, made.is_counted) == (1, at(3), False, False)
    assert made.retry is not None
    assert made.retry["max_attempts"] == 7
    assert (stored.state, stored.attempt, stored.started_at, stored.ticket) == (State.ACTIVE, 1, at(3), call.ticket)
    assert slots_of(call) == {row.id: 1}
    assert Slot.objects.values_list("started_at", "lease_until").get() == (at(3), at(48))


def test_a_claim_notes_that_the_message_was_published() -> None:
    call = admitted()
    claimed(call, now=at(3))
    assert seen(call).published_at == at(3)


def test_a_second_delivery_changes_nothing() -> None:
    call = started("api") if key("api", rate=(5, 10), throttle=(5, 10)) else None
    assert call is not None
    before = snapshot()
    assert claim.claim(call.id, ticket_of(call), now=at(1)) is Refused.STALE
    assert snapshot() == before


@pytest.mark.parametrize("state", ["waiting", "cancelled", "admitted again", "completed", "gone"])
def test_a_late_delivery_changes_nothing(state: str) -> None:
    key("api", rate=(5, 10), throttle=(5, 10))
    call = admitted("api")
    old = ticket_of(call)
    match state:
        case "waiting":
            finish.put_back(call.id, old, from_states=[State.DISPATCHED])
        case "cancelled":
            api.cancel([call.id])
        case "admitted again":
            finish.put_back(call.id, old, from_states=[State.DISPATCHED])
            assert go(call) == [call.id]
        case "completed":
            claimed(call)
            finish.complete(call.id, old, result=None)
        case "gone":
            erase(call)
    before = snapshot()
    assert claim.claim(call.id, old, now=at(1)) is Refused.STALE
    assert snapshot() == before


def test_a_ticket_that_was_never_given_starts_nothing() -> None:
    call = admitted()
    before = snapshot()
    assert claim.claim(call.id, uuid4(), now=at(1)) is Refused.STALE
    assert claim.claim(uuid4(), ticket_of(call), now=at(1)) is Refused.STALE
    assert snapshot() == before


# What closes the door between the admission and the claim


def close(how: str) -> None:
    match how:
        case "pause":
            api.pause("api")
        case "block":
            control.block(SECOND, names=["api"], now=at(0.5))
        case "override":
            api.override("api", until=at(60), concurrency=0)
        case "limit":
            api.limit("api", {"concurrency": 0, "throttle": (10, 1)})


def reopen(how: str) -> None:
    match how:
        case "pause" | "block":
            control.resume("api")
        case "override":
            control.end_override("api")
        case "limit":
            control.limit("api", {"concurrency": 9})


closings = pytest.mark.parametrize("how", ["pause", "block", "override", "limit"])
paces = pytest.mark.parametrize("limits", [{}, {"throttle": (10, 1)}], ids=["plain", "throttled"])


@closings
@paces
def test_a_key_that_closed_since_the_admission_refuses_the_claim_and_nothing_is_spent(how: str, limits: Any) -> None:
    key("api", rate=(5, 60), **limits)
    call = admitted("api")
    close(how)
    before = snapshot()
    assert claim.claim(call.id, ticket_of(call), now=at(1)) is Refused.KEY_CLOSED
    assert snapshot() == before


@closings
def test_a_refused_call_goes_back_to_the_front_of_its_lane_without_an_attempt(how: str) -> None:
    key("api", concurrency=9)
    first = admitted("api", now=at(0))
    second = waiting("api")
    close(how)
    if how == "block":
        control.block(timedelta(hours=1), names=["api"])
    ran: list[str] = []
    assert engine.execute(first.id, ticket_of(first), lambda: ran.append("ran")) is Refused.KEY_CLOSED
    stored = seen(first)
    assert ran == []
    assert (stored.state, stored.attempt, stored.ticket, stored.errors) == (State.AVAILABLE, 0, None, [])
    assert (stored.dispatched_at, stored.published_at, stored.started_at) == (None, None, None)
    assert stored.position < second.position
    assert not Slot.objects.exists()
    reopen(how)
    assert go(first, now=at(7200)) == [first.id, second.id]


def test_a_block_that_has_ended_refuses_nothing() -> None:
    key("api")
    call = admitted("api")
    control.block(SECOND, names=["api"], now=T0)
    claimed(call, now=at(1))


def test_a_call_that_expired_on_its_way_is_discarded_and_not_run() -> None:
    row = key("api", concurrency=1)
    call, second = admitted("api", expires_at=at(10)), waiting("api")
    before = snapshot()
    assert claim.claim(call.id, ticket_of(call), now=at(10)) is Refused.EXPIRED
    assert snapshot() == before
    CallQueue.objects.filter(id=call.id).update(expires_at=T0 - timedelta(days=10_000))
    ran: list[str] = []
    assert engine.execute(call.id, ticket_of(call), lambda: ran.append("ran")) is Refused.EXPIRED
    stored = seen(call)
    assert ran == []
    assert (stored.state, stored.attempt, stored.ticket) == (State.DISCARDED, 0, None)
    assert stored.error["type"] == "Expired"
    assert slots_of(second) == {row.id: 1}


# What the start is counted in


def test_a_start_is_stamped_on_the_window_of_every_key_that_has_one() -> None:
    row, tenant = key("api", rate=(10, 60)), key("tenant", rate=(10, 1))
    key("unlimited")
    call = admitted(costs={"api": 3, "tenant": 1, "unlimited": 2})
    assert claimed(call, now=at(1)).is_counted
    assert set(Window.objects.values_list("key", "cost", "last_start_at")) == {
        (row.id, 3, at(1)),
        (tenant.id, 1, at(1)),
    }


def test_starts_share_the_parts_of_a_window_and_keep_their_last_time() -> None:
    key("api", rate=(10, 60))
    for seconds in (0, 0.1, 0.59, 0.6):
        started("api", now=at(seconds))
    # A part is a hundredth of the period: 0.6 s.
    parts = Window.objects.order_by("last_start_at").values_list("cost", "last_start_at")
    assert list(parts) == [(3, at(0.59)), (1, at(0.6))]


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


def test_an_override_decides_whether_and_how_a_start_is_counted() -> None:
    key("api", rate=(10, 60))
    far = T0 + timedelta(days=36_500)
    control.override("api", {"rate": None, "throttle": (1, 10)}, far)
    made = claimed(admitted("api"))
    # No rate is in force, but the key's own counts the start when it holds again.
    assert (made.is_counted, made.is_paced) == (True, True)
    assert Window.objects.values_list("cost", "last_start_at").get() == (1, made.start_at)
    assert next_start(RateLimitKey.objects.get()) == made.start_at + 10 * SECOND


def test_an_override_that_has_run_out_decides_nothing() -> None:
    key("api", rate=(10, 60))
    control.override("api", {"rate": None, "throttle": (1, 10)}, at(60))
    call = admitted("api", now=at(61))
    made = claimed(call, now=at(61))
    assert (made.is_counted, made.is_paced) == (True, False)


# The throttle


def test_throttled_starts_are_spaced_however_the_claims_come(settings: Any) -> None:
    settings.DISPATCHER = {"horizon": 60, "lead": 0.01}
    key("api", throttle=(10, 1))
    calls = [waiting("api") for _ in range(8)]
    assert len(go(*calls)) == 8
    times = [0, 0, 0, 0.05, 0.35, 2, 2, 2]
    starts = [claimed(call, now=at(time)).start_at for call, time in zip(calls, times, strict=True)]
    assert all(later - earlier >= SECOND / 10 for earlier, later in pairwise(starts))
    assert all(start >= at(time) + SECOND / 100 for start, time in zip(starts, times, strict=True))
    assert starts[0] == at(0.01)
    assert starts[1] - starts[0] <= SECOND / 10 + MICROSECOND
    assert starts[5] == at(2.01)


def test_a_dear_start_delays_the_next_by_its_cost(settings: Any) -> None:
    settings.DISPATCHER = {"horizon": 60}
    key("api", throttle=(3, 1))
    calls = [waiting(costs={"api": 2}), waiting("api")]
    go(*calls)
    first, second = (claimed(call).start_at for call in calls)
    assert 2 * SECOND / 3 <= second - first <= 2 * SECOND / 3 + 2 * MICROSECOND


def test_a_call_of_two_throttles_waits_for_the_later_and_delays_both(settings: Any) -> None:
    settings.DISPATCHER = {"horizon": 60, "lead": 0}
    fast, slow = key("fast", throttle=(10, 1)), key("slow", throttle=(1, 1))
    calls = [waiting("fast"), waiting("slow"), waiting("fast", "slow")]
    go(*calls)
    starts = [claimed(call).start_at for call in calls]
    assert starts == [T0, T0, at(1)]
    assert (next_start(fast), next_start(slow)) == (at(1.1), at(2))


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


# Heartbeats


def test_a_heartbeat_renews_all_slots_of_the_calls_that_it_names(settings: Any) -> None:
    settings.DISPATCHER = {"run_lease": 60}
    key("api")
    key("tenant")
    mine, prefetched, other = started("api", "tenant"), admitted("api"), started("api")
    before = Slot.objects.get(call=other).lease_until
    assert renew([(call.id, ticket_of(call)) for call in (mine, prefetched)], now=at(30)) == 3
    assert set(Slot.objects.exclude(call=other).values_list("lease_until", flat=True)) == {at(90)}
    assert Slot.objects.get(call=other).lease_until == before


def test_a_heartbeat_with_an_old_ticket_renews_nothing() -> None:
    call = admitted()
    old = ticket_of(call)
    finish.put_back(call.id, old, from_states=[State.DISPATCHED])
    go(call)
    before = snapshot()
    assert renew([(call.id, old), (uuid4(), uuid4())], now=at(30)) == 0
    assert renew([], now=at(30)) == 0
    assert snapshot() == before
