"""Any of several budgets: which key a call gets, who waits, and what lets it go on."""

from datetime import timedelta
from typing import Any

import pytest

from dispatcher import api, engine, sql
from dispatcher.api import any_of
from dispatcher.audit import audit
from dispatcher.errors import CallInvalid, CallNeverRuns, ConfigurationError, UnknownKey
from dispatcher.lifecycle import admit, finish, publish, recover
from dispatcher.lifecycle.retention import unused
from dispatcher.models import CallQueue, Lane, RateLimitKey, Slot
from dispatcher.request import Call
from dispatcher.states import State
from tests.builders import (
    SECOND,
    T0,
    at,
    committed,
    end,
    erase,
    go,
    key,
    lane_of,
    seen,
    slots_of,
    start,
    states,
    ticket_of,
    waiting,
)
from tests.steps.conftest import Broker
from tests.steps.feeding import send, take

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


def test_the_member_that_was_spent_the_longest_ago_is_next() -> None:
    for number in (1, 2, 3):
        key(f"egress:{number}", concurrency=2)
    found = []
    for number in range(6):
        call = waiting(EGRESS)
        assert go(call, now=at(number)) == [call.id]
        found.append(chosen(call))
        end_at(call, number)
    assert found == [f"egress:{number}" for number in (1, 2, 3, 1, 2, 3)]


def end_at(call: CallQueue, seconds: float) -> None:
    start(call, now=at(seconds))
    end(call)


def test_a_cost_is_spent_of_one_member() -> None:
    key("egress:1", concurrency=2)
    two = key("egress:2", concurrency=4)
    calls = [waiting(costs={EGRESS: 3}) for _ in range(2)]
    assert go(*calls) == [calls[0].id]
    assert chosen(calls[0]) == "egress:2"
    assert slots_of(calls[0]) == {two.id: 3, group().id: 3}


def test_windows_and_throttles_of_the_members_hold() -> None:
    for number in (1, 2):
        key(f"egress:{number}", rate=(2, 60))
    calls = [waiting(EGRESS) for _ in range(6)]
    assert len(go(*calls)) == 4
    for call in calls[:4]:
        start(call, now=T0)
        end(call)
    assert go(*calls, now=at(1)) == []
    assert group().opens_at == at(60.05)
    assert len(go(*calls, now=at(61))) == 2


def test_the_group_opens_when_the_first_of_its_members_does() -> None:
    for number, seconds in ((1, 30), (2, 10)):
        key(f"egress:{number}")
        RateLimitKey.objects.filter(name=f"egress:{number}").update(blocked_until=at(seconds))
    call = waiting(EGRESS)
    assert go(call) == []
    assert lane_of(call).parked_on_id == group().id
    assert group().opens_at == at(10)


def test_a_paused_and_a_blocked_member_are_passed_over() -> None:
    for number in (1, 2, 3):
        key(f"egress:{number}")
    api.pause("egress:1")
    RateLimitKey.objects.filter(name="egress:2").update(blocked_until=at(10))
    calls = [waiting(EGRESS) for _ in range(3)]
    assert len(go(*calls)) == 3
    assert {chosen(call) for call in calls} == {"egress:3"}


def test_a_limit_of_the_group_holds_over_all_members() -> None:
    for number in (1, 2):
        key(f"egress:{number}", concurrency=5)
    calls = [waiting(EGRESS) for _ in range(5)]
    api.limit("egress:*", {"concurrency": 3})
    assert sum(seen(call).state == State.DISPATCHED for call in calls) + len(go(*calls)) == 3


def test_a_group_is_declared_with_limits_of_its_own() -> None:
    key("egress:1")
    RateLimitKey.objects.declare(EGRESS, concurrency=1)
    assert len(go(*[waiting(EGRESS) for _ in range(3)])) == 1
    with pytest.raises(CallInvalid, match="give any_of"):
        RateLimitKey.objects.declare("account:*", concurrency=1)


def test_a_paused_group_lets_nothing_start() -> None:
    key("egress:1")
    call = waiting(EGRESS)
    api.pause("egress:*")
    assert go(call) == []
    api.resume("egress:*")
    assert seen(call).state == State.DISPATCHED


def test_another_attempt_may_get_another_member() -> None:
    for number in (1, 2):
        key(f"egress:{number}", concurrency=1)
    call = waiting(EGRESS)
    go(call)
    assert chosen(call) == "egress:1"
    api.pause("egress:1")
    assert finish.put_back(call.id, ticket_of(seen(call)), from_states=[State.DISPATCHED])
    assert go(call) == [call.id]
    assert chosen(call) == "egress:2"


# What opens a group


@pytest.fixture
def parked(settings: Any) -> CallQueue:
    """Return a call that waits for one of two members, both of which are full."""
    holders = [waiting(name) for name in (key("egress:1", concurrency=1).name, key("egress:2", concurrency=1).name)]
    assert len(go(*holders)) == 2
    for holder in holders:
        start(holder, now=T0)
    call = waiting(EGRESS)
    assert go(call) == []
    assert lane_of(call).parked_on_id == group().id
    return call


def holder_of(name: str) -> CallQueue:
    return CallQueue.objects.get(slots__key__name=name, state="active")


def test_the_end_of_a_call_that_names_a_member_opens_it(parked: CallQueue) -> None:
    holder = holder_of("egress:2")
    released = finish.complete(holder.id, ticket_of(holder), result=None)
    assert released is not None
    assert engine.hand_over(released.keys, released.lane_id) == 1
    assert chosen(parked) == "egress:2"


def test_a_cancelled_call_of_a_member_opens_it() -> None:
    key("egress:1", concurrency=1)
    holder = waiting("egress:1")
    go(holder)
    call = waiting(EGRESS)
    assert go(call) == []
    api.cancel(holder)
    assert chosen(call) == "egress:1"


def test_a_raised_limit_of_a_member_opens_it(parked: CallQueue) -> None:
    api.limit("egress:1", {"concurrency": 2})
    assert chosen(parked) == "egress:1"


def test_an_override_of_a_member_opens_it(parked: CallQueue) -> None:
    api.override("egress:1", until=sql.now() + 60 * SECOND, concurrency=2)
    assert chosen(parked) == "egress:1"


def test_a_resumed_member_opens_it() -> None:
    key("egress:1")
    api.pause("egress:1")
    call = waiting(EGRESS)
    assert go(call) == []
    api.resume("egress:1")
    assert chosen(call) == "egress:1"


def test_a_new_member_opens_it_with_the_next_tick(parked: CallQueue) -> None:
    api.declare("egress:3", {"concurrency": 1})
    engine.tick()
    assert chosen(parked) == "egress:3"


def test_time_opens_it() -> None:
    key("egress:1")
    api.block("egress:1", 60)
    call = waiting(EGRESS)
    assert admit.admit(lanes=[call.lane_id]).calls == []
    assert group().opens_at is not None
    engine.tick(now=sql.now() + 61 * SECOND)
    assert chosen(call) == "egress:1"


def test_the_end_of_an_override_of_a_member_opens_it() -> None:
    key("egress:1")
    api.override("egress:1", until=sql.now() + 60 * SECOND, concurrency=0)
    call = waiting(EGRESS)
    assert admit.admit(lanes=[call.lane_id]).calls == []
    engine.tick(now=sql.now() + 61 * SECOND)
    assert chosen(call) == "egress:1"


def test_the_sweep_finds_a_group_whose_member_has_room(parked: CallQueue) -> None:
    def stranded() -> list[int]:
        with sql.together():
            asked = recover.ask_sweep_keys(0, 100)
        return asked.row().stranded

    assert stranded() == []
    end(holder_of("egress:2"))
    assert stranded() == [group().id]


# Refused, or waiting for a member


@pytest.mark.parametrize("pattern", ["", "*", "egress", "egress:*:x", "eg*ress*", ":*", "a b*", 3, "queue:*", "qu*"])
def test_a_bad_pattern_is_refused(pattern: Any) -> None:
    with pytest.raises(CallInvalid, match="any_of"):
        any_of(pattern)


def test_a_pattern_without_any_of_is_refused() -> None:
    with pytest.raises(CallInvalid, match=r"give any_of\('egress:\*'\)"):
        CallQueue.objects.send("noop", keys=["egress:*"])


def test_a_named_member_beside_its_group_is_refused() -> None:
    with pytest.raises(CallInvalid, match="egress:1"):
        waiting("egress:1", EGRESS)


def test_groups_that_may_choose_the_same_key_are_refused() -> None:
    with pytest.raises(CallInvalid, match="may choose the same key"):
        waiting(EGRESS, any_of("egress:a*"))


def test_a_pattern_that_matches_no_key_is_refused_at_first() -> None:
    with pytest.raises(UnknownKey, match=r"no rate limit key matches 'egress:\*'"):
        waiting(EGRESS)
    assert not RateLimitKey.objects.exists()


def test_members_that_the_settings_name_are_made(settings: Any) -> None:
    settings.DISPATCHER = {"keys": {"egress:1": {"concurrency": 1}, "egress:2": {"concurrency": 1}, "egress:*": {}}}
    calls = [waiting(EGRESS) for _ in range(3)]
    assert len(go(*calls)) == 2
    assert set(RateLimitKey.objects.values_list("name", flat=True)) == {"egress:1", "egress:2", "egress:*"}


def test_without_its_last_member_a_call_waits_for_another() -> None:
    one = key("egress:1")
    first = waiting(EGRESS)
    one.delete()
    second = waiting(EGRESS)
    assert go(first, second) == []
    assert states([first, second]) == [State.AVAILABLE, State.AVAILABLE]
    key("egress:2")
    engine.tick()
    assert {chosen(first), chosen(second)} == {"egress:2"}


def test_a_cost_that_no_member_allows_is_refused() -> None:
    key("egress:1", concurrency=2)
    with pytest.raises(CallNeverRuns, match=r"egress:\*"):
        waiting(costs={EGRESS: 3})


def test_a_call_that_no_member_allows_any_more_waits_alone() -> None:
    key("egress:1", concurrency=3)
    key("egress:2", concurrency=2)
    call, behind = waiting(costs={EGRESS: 3}), waiting(EGRESS)
    api.limit("egress:1", {"concurrency": 2})
    assert go(call, behind) in ([behind.id], [])
    assert seen(call).oversized_key_id == group().id
    api.limit("egress:2", {"concurrency": 3})
    assert seen(call).oversized_key_id is None


# What checks it


def found() -> list[str]:
    return [each.check.name for each in audit(settle=timedelta(0)).found if each.count]


def test_the_audit_finds_calls_without_the_slot_of_their_member() -> None:
    key("egress:1", concurrency=1)
    first, second = waiting(EGRESS), waiting(EGRESS)
    assert go(first, second) == [first.id]
    assert found() == []
    Slot.objects.filter(key__name="egress:1").delete()
    assert found() == ["wrong_slots", "unserved_parked"]


def test_members_of_a_group_are_not_removed_as_unused(settings: Any) -> None:
    settings.DISPATCHER = {"keys": {"egress:*": {"concurrency": 1}}}
    call = waiting("egress:1")
    erase(call)
    waiting(EGRESS)
    Lane.objects.filter(key_ids__contains=[RateLimitKey.objects.get(name="egress:1").id]).delete()
    assert unused.remove_keys(now=sql.now() + timedelta(days=400)) == 0
    erase(*CallQueue.objects.all())
    Lane.objects.all().delete()
    assert unused.remove_keys(now=sql.now() + timedelta(days=400)) == 1
    assert unused.remove_keys(now=sql.now() + timedelta(days=400)) == 1


# Direct delivery


@pytest.mark.usefixtures("direct")
def test_a_direct_worker_starts_calls_under_the_members_with_room() -> None:
    for number in (1, 2):
        key(f"egress:{number}", concurrency=1)
    calls = send(3, keys=[EGRESS])
    step = take(9)
    assert [each.call.chosen_keys for each in step.starts] == [{EGRESS: "egress:1"}, {EGRESS: "egress:2"}]
    (third,) = take(9, step.starts[1]).starts
    assert (third.call.id, third.call.chosen_keys) == (calls[2].id, {EGRESS: "egress:2"})


@pytest.mark.usefixtures("direct")
def test_a_direct_worker_knows_all_keys_that_a_call_spends() -> None:
    key("api", concurrency=4)
    key("egress:1", concurrency=4)
    CallQueue.objects.send_many([Call(task="noop", queue="mail", keys=["api", any_of("egress:*")]) for _ in range(2)])
    names = dict(RateLimitKey.objects.values_list("id", "name"))
    spent = [sorted(names[each] for each in start.keys) for start in take(9).starts]
    assert spent == [["api", "egress:*", "egress:1"]] * 2


@pytest.mark.usefixtures("direct")
def test_a_direct_worker_stamps_the_windows_and_throttles_of_the_chosen_member() -> None:
    key("egress:1", rate=(1, 60), throttle=(1, 60))
    send(2, keys=[EGRESS])
    assert len(take(9).starts) == 1
    row = RateLimitKey.objects.get(name="egress:1")
    assert row.last_start_at is not None
    assert list(row.windows.values_list("cost", flat=True)) == [1]
    assert take(9).starts == []


@pytest.mark.usefixtures("direct")
def test_the_end_of_a_direct_call_that_names_a_member_opens_the_group() -> None:
    key("egress:1", concurrency=1)
    send(keys=["egress:1"])
    (first,) = take(9).starts
    (call,) = send(keys=[EGRESS])
    assert take(9).starts == []
    assert lane_of(call).parked_on_id == group().id
    assert [each.call.id for each in take(9, first).starts] == [call.id]


@pytest.mark.usefixtures("direct")
def test_the_end_of_a_direct_call_opens_the_group_for_calls_of_the_broker() -> None:
    key("egress:1", concurrency=1)
    send(keys=["egress:1"])
    (first,) = take(9).starts
    (call,) = send(keys=[EGRESS], queue="celery")
    assert lane_of(call).parked_on_id == group().id
    take(9, first)
    assert chosen(call) == "egress:1"


# A message


def test_a_message_that_is_published_again_names_the_same_key(broker: Broker) -> None:
    key("egress:1")
    call = waiting(EGRESS)
    assert go(call) == [call.id]
    (again,) = publish.unpublished(now=at(60))
    publish.publish([again], now=at(60))
    (message,) = broker.take()
    assert message.headers["dispatcher_chosen_keys"] == {EGRESS: "egress:1"}


def test_a_call_without_a_group_has_no_such_header(broker: Broker) -> None:
    key("egress:1")
    CallQueue.objects.send("noop", keys=["egress:1"])
    (message,) = broker.take()
    assert "dispatcher_chosen_keys" not in message.headers


def test_outside_of_a_task_there_is_no_current_call() -> None:
    assert api.current_call() is None


def test_the_key_of_a_call_with_several_groups_is_asked_by_its_pattern() -> None:
    for name in ("egress:1", "account:1"):
        key(name)
    call = waiting(EGRESS, any_of("account:*"))
    assert go(call) == [call.id]
    keys = seen(call).chosen_keys or {}
    assert keys == {"egress:*": "egress:1", "account:*": "account:1"}
    with pytest.raises(ConfigurationError, match="several any_of"):
        api.CurrentCall(id=call.id, chosen_keys=keys).key  # noqa: B018 -- reading it raises


# At the limit


@pytest.mark.parametrize(("on_limit", "state"), [("drop", State.DISCARDED), ("reschedule", State.SCHEDULED)])
def test_the_action_at_the_limit_counts_for_the_group(on_limit: str, state: State) -> None:
    key("egress:1", rate=(1, 60))
    first, second = waiting(EGRESS, on_limit=on_limit), waiting(EGRESS, on_limit=on_limit)
    assert go(first, second) == [first.id]
    assert seen(second).state == state


def test_a_lower_priority_waits_for_the_group_too() -> None:
    key("egress:1", concurrency=1)
    low, high = waiting(EGRESS), waiting(EGRESS, priority=5)
    assert go(low, high) == [high.id]
    end_at(high, 0)
    assert go(low) == [low.id]
