"""Any of several budgets: a call spends its group and one member that has room, and waits while none has."""

from datetime import timedelta

import pytest

from dispatcher import api
from dispatcher.api import any_of
from dispatcher.errors import CallInvalid, CallNeverRuns, RateLimited, UnknownKey
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.states import State
from tests.drive import Drive, Run

EGRESS = any_of("egress:*")


def members(drive: Drive, count: int = 2, **limits: object) -> None:
    """Declare so many members."""
    for number in range(1, count + 1):
        drive.key(f"egress:{number}", **limits)


def chosen(call: CallQueue | Run) -> str | None:
    """Return the member that a call holds."""
    keys = Drive.row(call).chosen_keys
    return None if keys is None else keys["egress:*"]


# What a call gets


def test_a_call_holds_its_other_keys_the_group_and_one_of_the_members(drive: Drive) -> None:
    drive.key("api")
    members(drive, 1, concurrency=5)
    call = drive.send(costs={"api": 1, EGRESS: 3})
    drive.take()
    assert drive.held(call) == {"api": 1, "egress:*": 3, "egress:1": 3}


def test_calls_spread_over_the_members_and_use_all_their_room(drive: Drive) -> None:
    members(drive, 3, concurrency=2)
    drive.send_many(8, EGRESS)
    runs = drive.take(8)
    assert [chosen(run) for run in runs[:3]] == ["egress:1", "egress:2", "egress:3"]
    assert sorted(filter(None, map(chosen, runs))) == [f"egress:{number}" for number in (1, 1, 2, 2, 3, 3)]


def test_of_members_with_the_same_room_that_spent_the_longest_ago_is_next(drive: Drive) -> None:
    members(drive, 3, concurrency=2)
    found = []
    for _ in range(6):
        drive.send(EGRESS)
        (run,) = drive.take()
        found.append(chosen(run))
        drive.end(run)
        drive.forward(1)
    assert found == [f"egress:{number}" for number in (1, 2, 3, 1, 2, 3)]


def test_a_cost_is_spent_of_one_member(drive: Drive) -> None:
    drive.key("egress:1", concurrency=2)
    drive.key("egress:2", concurrency=4)
    drive.send_many(2, costs={EGRESS: 3})
    (run,) = drive.take(2)
    assert drive.held(run) == {"egress:*": 3, "egress:2": 3}


def test_the_member_of_an_end_is_the_one_that_the_next_call_gets(drive: Drive) -> None:
    members(drive, concurrency=1)
    drive.send_many(3, EGRESS)
    runs = drive.take(3)
    (third,) = drive.take(3, ends=[run for run in runs if chosen(run) == "egress:2"])
    assert chosen(third) == "egress:2"


def test_windows_of_the_members_hold(drive: Drive) -> None:
    members(drive, rate=(2, 60))
    drive.send_many(6, EGRESS)
    assert len(drive.drain(room=6)) == 4
    drive.forward(59)
    assert drive.take(6) == []
    drive.forward(1.1)
    assert len(drive.take(6)) == 2


def test_throttles_of_the_members_hold(drive: Drive) -> None:
    members(drive, throttle=(1, 60))
    drive.send_many(4, EGRESS)
    assert len(drive.take(4)) == 2
    drive.forward(59)
    assert drive.take(4) == []
    drive.forward(1.1)
    assert len(drive.take(4)) == 2


def test_a_paused_and_a_blocked_member_are_passed_over(drive: Drive) -> None:
    members(drive, 3)
    api.pause("egress:1")
    api.block("egress:2", 10)
    drive.send_many(3, EGRESS)
    assert {chosen(run) for run in drive.take(3)} == {"egress:3"}


def test_a_stop_blocks_the_member_that_the_call_spent_and_none_of_its_other_keys(drive: Drive) -> None:
    drive.key("api")
    members(drive, 2)
    call = drive.send("api", EGRESS)
    (run,) = drive.take()
    assert chosen(run) == "egress:1"
    drive.end(run, error=RateLimited(60))
    (again,) = drive.take()
    assert (again.call, chosen(again)) == (call.id, "egress:2")


def test_a_limit_of_the_group_holds_over_all_members(drive: Drive) -> None:
    members(drive, concurrency=5)
    drive.key(EGRESS, concurrency=3)
    drive.send_many(5, EGRESS)
    runs = drive.take(5)
    assert len(runs) == 3
    api.pause("egress:*")
    assert drive.take(5, ends=runs[:1]) == []
    api.resume("egress:*")
    assert len(drive.take(5)) == 1


def test_another_attempt_may_get_another_member(drive: Drive) -> None:
    members(drive, concurrency=1)
    drive.send(EGRESS)
    (run,) = drive.take()
    assert chosen(run) == "egress:1"
    api.pause("egress:1")
    drive.give_back(run)
    (again,) = drive.take()
    assert chosen(again) == "egress:2"


def test_calls_that_name_a_member_and_calls_of_the_group_share_it(drive: Drive) -> None:
    members(drive, concurrency=1)
    drive.send("egress:1")
    named = drive.take()
    assert len(named) == 1
    drive.send_many(2, EGRESS)
    (run,) = drive.take(2)
    assert chosen(run) == "egress:2"
    (last,) = drive.take(2, ends=named)
    assert chosen(last) == "egress:1"


@pytest.mark.parametrize("other", ["direct", "broker", "http"])
def test_the_end_of_a_call_that_names_a_member_opens_the_group_for_all_queues(drive: Drive, other: str) -> None:
    members(drive, 1, concurrency=1)
    drive.send("egress:1")
    (run,) = drive.take()
    beside = drive.beside(other)
    call = beside.send(EGRESS)
    assert beside.take() == []
    drive.end(run)
    assert [each.call for each in beside.take()] == [call.id]


# What opens a group


@pytest.fixture
def holders(drive: Drive) -> list[Run]:
    """Let two calls hold the two members, and one of the group wait."""
    members(drive, concurrency=1)
    drive.send("egress:1")
    drive.send("egress:2")
    runs = drive.take(2)
    drive.send(EGRESS)
    assert drive.take() == []
    return runs


@pytest.mark.usefixtures("holders")
@pytest.mark.parametrize("way", ["limit", "override", "new member"])
def test_a_member_that_gets_room_opens_the_group(drive: Drive, way: str) -> None:
    match way:
        case "limit":
            drive.limit("egress:1", concurrency=2)
        case "override":
            drive.override("egress:1", seconds=60, concurrency=2)
        case _:
            drive.key("egress:3", concurrency=1)
            drive.forward(1)
    (run,) = drive.take()
    assert chosen(run) == ("egress:3" if way == "new member" else "egress:1")


@pytest.mark.deliveries("direct", "http")  # With the broker it takes a tick, which looks at each key, too.
def test_the_group_opens_in_time_where_an_end_leaves_its_member_to_time(drive: Drive) -> None:
    members(drive, 1, concurrency=1, throttle=(1, 60))
    drive.send("egress:1")
    (run,) = drive.take()
    call = drive.send(EGRESS)
    assert drive.take() == []
    drive.end(run)
    drive.clock.forward(60)
    assert [each.call for each in drive.take()] == [call.id]


def test_a_cancelled_call_of_a_member_opens_the_group(drive: Drive) -> None:
    drive.key("egress:1", concurrency=0)
    named, call = drive.send("egress:1", expires_at=drive.clock.now + timedelta(hours=1)), drive.send(EGRESS)
    assert drive.take(2) == []
    api.cancel([named.id])
    drive.limit("egress:1", concurrency=1)
    assert [run.call for run in drive.take(2)] == [call.id]


def test_a_resumed_member_opens_the_group(drive: Drive) -> None:
    drive.key("egress:1")
    api.pause("egress:1")
    call = drive.send(EGRESS)
    assert drive.take() == []
    api.resume("egress:1")
    assert [run.call for run in drive.take()] == [call.id]


def test_the_group_opens_when_the_first_of_its_members_does(drive: Drive) -> None:
    members(drive)
    api.block("egress:1", 30)
    api.block("egress:2", 10)
    drive.send(EGRESS)
    assert drive.take() == []
    drive.forward(9)
    assert drive.take() == []
    drive.forward(1)
    (run,) = drive.take()
    assert chosen(run) == "egress:2"


def test_a_group_opens_for_a_call_that_costs_more_while_the_one_before_it_runs(drive: Drive) -> None:
    members(drive, 1, rate=(3, 60))
    drive.send(costs={EGRESS: 1})
    call = drive.send(costs={EGRESS: 3})
    assert len(drive.take(2)) == 1
    drive.forward(61)
    assert [run.call for run in drive.take()] == [call.id]


def test_the_end_of_an_override_of_a_member_opens_the_group(drive: Drive) -> None:
    drive.key("egress:1")
    drive.override("egress:1", seconds=60, concurrency=0)
    call = drive.send(EGRESS)
    assert drive.take() == []
    drive.forward(60)
    assert [run.call for run in drive.take()] == [call.id]


# Refused, or waiting for a member


def test_a_named_member_beside_its_group_is_refused(drive: Drive) -> None:
    drive.key("egress:1")
    with pytest.raises(CallInvalid, match="egress:1"):
        drive.send("egress:1", EGRESS)


def test_groups_that_may_choose_the_same_key_are_refused(drive: Drive) -> None:
    drive.key("egress:a")
    with pytest.raises(CallInvalid, match="may choose the same key"):
        drive.send(EGRESS, any_of("egress:a*"))


def test_a_pattern_that_matches_no_key_is_refused_at_first(drive: Drive) -> None:
    with pytest.raises(UnknownKey, match=r"no rate limit key matches 'egress:\*'"):
        drive.send(EGRESS)
    assert not RateLimitKey.objects.exists()


def test_without_its_last_member_a_call_waits_for_another(drive: Drive) -> None:
    one = drive.key("egress:1", concurrency=0)
    call = drive.send(EGRESS)
    one.delete()
    drive.tick()
    later = drive.send(EGRESS)
    assert drive.take(2) == []
    drive.key("egress:2")
    drive.tick()
    assert [run.call for run in drive.take(2)] == [call.id, later.id]


def test_a_cost_that_no_member_allows_is_refused(drive: Drive) -> None:
    drive.key("egress:1", concurrency=2)
    with pytest.raises(CallNeverRuns, match=r"egress:\*"):
        drive.send(costs={EGRESS: 3})


def test_a_call_that_no_member_allows_any_more_waits_alone(drive: Drive) -> None:
    drive.key("egress:1", concurrency=3)
    api.pause("egress:1")
    call, behind = drive.send(costs={EGRESS: 3}), drive.send(EGRESS)
    drive.limit("egress:1", concurrency=2)
    api.resume("egress:1")
    (run,) = drive.take(2)
    assert (run.call, drive.state(call)) == (behind.id, State.AVAILABLE)
    drive.limit("egress:1", concurrency=3)
    assert [each.call for each in drive.take(2, ends=[run])] == [call.id]


# Order, and what happens at the limit


@pytest.mark.parametrize(("on_limit", "state"), [("drop", State.DISCARDED), ("reschedule", State.SCHEDULED)])
def test_the_action_at_the_limit_counts_for_the_group(drive: Drive, on_limit: str, state: State) -> None:
    drive.key("egress:1", rate=(1, 60))
    first, second = drive.send_many(2, EGRESS, on_limit=on_limit)
    assert [run.call for run in drive.take(2)] == [first.id]
    assert drive.state(second) == state


def test_a_lower_priority_waits_for_the_group_too(drive: Drive) -> None:
    drive.key("egress:1", concurrency=1)
    drive.key(EGRESS)
    api.pause("egress:*")
    low, high = drive.send(EGRESS), drive.send(EGRESS, priority=5)
    api.resume("egress:*")
    (run,) = drive.take(2)
    assert run.call == high.id
    assert [each.call for each in drive.take(2, ends=[run])] == [low.id]


def test_a_call_may_spend_several_groups(drive: Drive) -> None:
    for name in ("egress:1", "account:1", "account:2"):
        drive.key(name, concurrency=1)
    first, second = drive.send_many(2, EGRESS, any_of("account:*"))
    (run,) = drive.take(2)
    assert drive.row(run).chosen_keys == {"egress:*": "egress:1", "account:*": "account:1"}
    drive.key("egress:2", concurrency=1)
    drive.tick()
    (other,) = drive.take(2)
    assert (other.call, first.id) == (second.id, run.call)
    assert drive.row(other).chosen_keys == {"egress:*": "egress:2", "account:*": "account:2"}
