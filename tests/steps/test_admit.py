"""Admit: who gets slots and a ticket, who waits, and where."""

from collections.abc import Sequence
from typing import Any

from dispatcher import api, engine
from dispatcher.lifecycle import admit, control, finish
from dispatcher.models import CallQueue, Lane, Slot
from dispatcher.states import State
from tests.builders import (
    MARGIN,
    SECOND,
    T0,
    admitted,
    at,
    committed,
    end,
    go,
    key,
    lane_of,
    next_start,
    seen,
    slots_of,
    start,
    started,
    states,
    ticket_of,
    waiting,
)
from tests.steps.conftest import Broker

pytestmark = committed


def ids(calls: Sequence[CallQueue]) -> list[Any]:
    return [call.id for call in calls]


# What an admitted call has


def test_an_admitted_call_has_a_ticket_a_slot_of_each_key_and_a_lease(settings: Any) -> None:
    settings.DISPATCHER = {"dispatch_lease": 30}
    row, tenant, mail = key("api"), key("tenant"), key("queue:mail")
    call = waiting(costs={"api": 3, "tenant": 1}, queue="mail")
    (made,) = admit.admit(lanes=[call.lane_id], now=T0).calls
    stored = seen(call)
    assert (stored.state, stored.dispatched_at, stored.published_at) == (State.DISPATCHED, T0, None)
    assert (stored.started_at, stored.attempt) == (None, 0)
    assert (made.id, made.ticket, made.task, made.queue) == (call.id, stored.ticket, "noop", "mail")
    assert slots_of(call) == {row.id: 3, tenant.id: 1, mail.id: 1}
    assert set(Slot.objects.values_list("started_at", "lease_until")) == {(None, at(30))}


def test_a_call_without_keys_holds_one_slot_without_a_key() -> None:
    assert slots_of(admitted()) == {None: 1}


def test_a_key_without_limits_lets_everything_in() -> None:
    row = key("api")
    calls = [waiting("api") for _ in range(5)]
    assert go(*calls) == ids(calls)
    assert Slot.objects.filter(key=row).count() == 5


def test_every_admission_has_a_ticket_of_its_own() -> None:
    call = admitted()
    assert finish.put_back(call.id, ticket_of(call), from_states=[State.DISPATCHED])
    assert go(call) == [call.id]
    assert seen(call).ticket not in (None, call.ticket)


# The limits


def test_concurrency_holds_from_admission_to_finish() -> None:
    row = key("api", concurrency=2)
    first, second, third, fourth = calls = [waiting("api") for _ in range(4)]
    assert go(*calls) == [first.id, second.id]
    assert lane_of(first).parked_on_id == row.id
    start(first, now=T0)
    assert go(*calls, now=at(3600)) == []
    end(first)
    assert go(*calls) == [third.id]
    end(second)
    assert go(*calls) == [fourth.id]
    assert lane_of(first).parked_on_id is None
    assert not lane_of(first).is_awake


def test_a_concurrency_of_0_lets_nothing_in() -> None:
    key("api", concurrency=0)
    call = waiting("api")
    assert go(call) == []
    api.limit("api", {"concurrency": 1})
    assert states([call]) == [State.DISPATCHED]


def test_a_window_slides_from_the_starts_and_not_from_the_admissions() -> None:
    row = key("api", rate=(2, 10))
    first, second, third = calls = [waiting("api") for _ in range(3)]
    assert go(*calls) == [first.id, second.id]
    start(first, now=at(4))
    start(second, now=at(7))
    # While they had not started, the key was thought to open when their admissions are a period old.
    assert go(*calls, now=at(11)) == []
    row.refresh_from_db()
    assert row.opens_at == at(14) + MARGIN
    assert go(*calls, now=at(14) + MARGIN - SECOND / 1000) == []
    assert go(*calls, now=at(14) + MARGIN) == [third.id]


def test_a_start_counts_in_its_window_also_when_its_call_has_ended() -> None:
    key("api", rate=(1, 10))
    first, second = calls = [waiting("api") for _ in range(2)]
    assert go(*calls) == [first.id]
    start(first, now=T0)
    end(first)
    assert go(*calls, now=at(10)) == []
    assert go(*calls, now=at(10) + MARGIN) == [second.id]


def test_what_is_admitted_and_not_started_holds_its_room_in_the_window_for_ever() -> None:
    key("api", rate=(2, 10))
    calls = [waiting("api") for _ in range(3)]
    assert len(go(*calls)) == 2
    assert go(*calls, now=at(100_000)) == []


def test_a_throttle_admits_only_what_starts_before_the_horizon(settings: Any) -> None:
    settings.DISPATCHER = {"horizon": 0.25}
    row = key("api", throttle=(10, 1))
    calls = [waiting("api") for _ in range(9)]
    # These start now, in 0.1 s and in 0.2 s.
    assert go(*calls) == ids(calls[:3])
    assert go(*calls, now=at(60)) == []
    for call in calls[:3]:
        start(call, now=T0)
    assert T0 + 0.3 * SECOND <= next_start(row) <= T0 + 0.32 * SECOND
    assert go(*calls) == []
    row.refresh_from_db()
    assert row.opens_at is not None
    assert T0 < row.opens_at <= T0 + 0.1 * SECOND
    assert go(*calls, now=row.opens_at) == [calls[3].id]


def test_a_dear_call_takes_its_time_of_the_throttle() -> None:
    key("api", throttle=(10, 1))
    calls = [waiting(costs={"api": 3}), waiting("api")]
    assert go(*calls) == ids(calls[:1])


def test_the_rate_and_the_throttle_of_a_key_hold_together(settings: Any) -> None:
    settings.DISPATCHER = {"horizon": 10}
    key("few", rate=(2, 60), throttle=(10, 1))
    key("slow", rate=(20, 60), throttle=(1, 5))
    few, slow = [waiting("few") for _ in range(5)], [waiting("slow") for _ in range(5)]
    assert go(*few) == ids(few[:2])
    assert go(*slow) == ids(slow[:3])


# Several keys, costs, queue keys


def test_all_keys_of_a_call_must_have_room_at_once() -> None:
    row, tenant = key("api", concurrency=2), key("tenant", concurrency=1)
    first, second = calls = [waiting("api", "tenant") for _ in range(2)]
    assert go(*calls) == [first.id]
    assert slots_of(first) == {row.id: 1, tenant.id: 1}
    assert slots_of(second) == {}
    assert lane_of(second).parked_on_id == tenant.id


def test_a_call_that_one_key_stops_takes_nothing_of_the_others() -> None:
    key("api", concurrency=1)
    key("tenant", concurrency=0)
    stopped, free = waiting("api", "tenant"), waiting("api")
    assert go(stopped, free) == [free.id]


def test_costs_add_up_and_a_cheap_call_does_not_pass_a_dear_one() -> None:
    key("api", concurrency=5)
    first, dear, cheap = [waiting(costs={"api": cost}) for cost in (3, 3, 1)]
    assert go(first) == [first.id]
    assert states([dear, cheap]) == [State.AVAILABLE, State.AVAILABLE]
    end(first)
    assert go(first) == [dear.id, cheap.id]


def test_a_cost_counts_in_the_window_too() -> None:
    key("api", rate=(5, 10))
    first, second = calls = [waiting(costs={"api": 3}) for _ in range(2)]
    assert go(*calls) == [first.id]
    start(first, now=T0)
    assert go(*calls, now=at(9)) == []
    assert go(*calls, now=at(11)) == [second.id]


def test_a_queue_key_made_later_applies_to_what_waits_already() -> None:
    call, other = waiting(queue="mail"), waiting(queue="post")
    mail = key("queue:mail", concurrency=0)
    assert go(call, other) == [other.id]
    assert lane_of(call).parked_on_id == mail.id
    api.limit("queue:mail", {"concurrency": 1})
    assert states([call]) == [State.DISPATCHED]
    assert slots_of(call) == {mail.id: 1}


def test_a_limit_that_is_lowered_below_what_runs_lets_nothing_in_until_enough_has_ended() -> None:
    key("api", concurrency=3)
    running = [started("api") for _ in range(3)]
    call = waiting("api")
    api.limit("api", {"concurrency": 1})
    for each in running[:2]:
        end(each)
        assert go(call) == []
    end(running[2])
    assert go(call) == [call.id]


# Pause, block, override


def test_a_paused_key_lets_nothing_in_until_it_is_resumed() -> None:
    row = key("api")
    call = waiting("api")
    api.pause("api")
    assert go(call, now=at(100_000)) == []
    row.refresh_from_db()
    assert row.opens_at is None
    api.resume("api")
    assert states([call]) == [State.DISPATCHED]


def test_a_blocked_key_lets_nothing_in_until_its_block_ends() -> None:
    row = key("api")
    call = waiting("api")
    control.block(30 * SECOND, names=["api"], now=T0)
    assert go(call) == []
    row.refresh_from_db()
    assert row.opens_at == at(30)
    assert go(call, now=at(30)) == [call.id]


def test_an_override_is_in_force_until_it_ends() -> None:
    key("api", concurrency=1)
    control.override("api", {"concurrency": 3}, at(60))
    calls = [waiting("api") for _ in range(5)]
    assert go(*calls, now=at(59)) == ids(calls[:3])
    for call in calls[:2]:
        end(call)
    assert go(*calls, now=at(60)) == []
    end(calls[2])
    assert go(*calls, now=at(60)) == [calls[3].id]


def test_an_override_leaves_the_limits_that_it_does_not_name() -> None:
    key("api", concurrency=2, rate=(1, 60))
    control.override("api", {"rate": {"limit": 4, "period": 60}}, at(60))
    calls = [waiting("api") for _ in range(5)]
    assert len(go(*calls)) == 2


def test_an_override_may_lift_a_limit() -> None:
    key("api", concurrency=1)
    control.override("api", {"concurrency": None}, at(60))
    calls = [waiting("api") for _ in range(5)]
    assert len(go(*calls)) == 5


# Order


def test_a_lane_goes_in_order_of_sending() -> None:
    key("api", concurrency=3)
    calls = [waiting("api") for _ in range(5)]
    assert go(calls[4]) == ids(calls[:3])


def test_a_higher_priority_goes_first() -> None:
    key("api", concurrency=3)
    calls = {priority: [waiting("api", priority=priority) for _ in range(2)] for priority in (-5, 0, 100)}
    assert go(*calls[-5], *calls[0], *calls[100]) == [*ids(calls[100]), calls[0][0].id]


def test_a_higher_priority_that_a_limit_stops_does_not_stand_in_the_way_of_others() -> None:
    key("full", concurrency=0)
    high, low = waiting("full", priority=10), waiting(priority=-10)
    assert go(high, low) == [low.id]


def test_a_lane_waits_for_one_of_higher_priority_in_its_queue_that_is_awake() -> None:
    low, high, elsewhere = waiting(), waiting(priority=1), waiting(priority=1, queue="other")
    Lane.objects.filter(id__in=[high.lane_id, elsewhere.lane_id]).update(is_awake=True)
    assert go(low) == []
    assert lane_of(low).is_awake
    assert go(low, high) == [high.id, low.id]


def test_lanes_that_share_a_key_take_turns() -> None:
    for tenant in ("acme", "bolt"):
        key(tenant)
    row = key("api", concurrency=3)
    flood = [waiting("api", "acme") for _ in range(10)]
    few = [waiting("api", "bolt") for _ in range(3)]
    order = go(*flood, *few, now=at(0))
    for second in range(1, 8):
        (oldest, *_) = CallQueue.objects.in_flight().order_by("dispatched_at", "position")
        end(oldest)
        order += [call.id for call in admit.admit(keys=[row.id], now=at(second)).calls]
    turns = ["acme" if call in ids(flood) else "bolt" for call in order]
    assert sorted(turns[:2]) == sorted(turns[2:4]) == sorted(turns[4:6]) == ["acme", "bolt"]
    assert turns[6:] == ["acme"] * 4


def test_a_pass_admits_no_more_than_its_batch_and_the_lane_stays_awake(settings: Any) -> None:
    settings.DISPATCHER = {"batch": 3}
    calls = [waiting() for _ in range(5)]
    assert go(*calls) == ids(calls[:3])
    assert lane_of(calls[0]).is_awake
    assert go(*calls, most=1) == [calls[3].id]
    assert [call.id for call in admit.admit(awake=True, now=T0).calls] == [calls[4].id]
    assert not lane_of(calls[0]).is_awake


def test_a_backlog_larger_than_a_batch_is_dispensed_to_its_end(settings: Any, broker: Broker) -> None:
    settings.DISPATCHER = {"batch": 2}
    calls = [waiting() for _ in range(7)]
    assert engine.dispense(lanes=[calls[0].lane_id]) == 7
    assert [message.headers["id"] for message in broker.take()] == [str(call.id) for call in calls]
