"""Groups: which member a call gets, and what stops a lane that spends one."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.limits.allocate import Allocation, Head, LockedKey, LockedLane, allocate
from dispatcher.limits.policy import AdmissionTuning, Policy, Use
from dispatcher.states import OnLimit

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
TUNING = AdmissionTuning(horizon=SECOND / 5, margin=SECOND / 20)
GROUP, ALIKE = 100, Policy(concurrency=2)


def lane(
    *costs: int, number: int = 1, keys: Sequence[int] = (GROUP,), on_limit: OnLimit = OnLimit.WAIT, priority: int = 0
) -> LockedLane:
    heads = [Head(call_id=UUID(int=1000 * number + at), costs={GROUP: cost}) for at, cost in enumerate(costs)]
    return LockedLane(id=number, key_ids=keys, heads=heads, on_limit=on_limit, priority=priority)


def made(lanes: Sequence[LockedLane], *keys: LockedKey, members: Sequence[int] | None = None) -> Allocation:
    """Make one pass over lanes whose group has these members; by default those of the keys."""
    group = LockedKey(id=GROUP, policy=Policy(), members=[key.id for key in keys] if members is None else members)
    return allocate(lanes, [*keys, group], now=NOW, tuning=TUNING, batch=100, reschedule_after=5 * SECOND)


def spread(allocation: Allocation) -> Mapping[int, int]:
    return Counter(chosen[GROUP] for chosen in allocation.chosen.values())


def member(number: int, policy: Policy = ALIKE, *, held: int = 0) -> LockedKey:
    return LockedKey(id=number, policy=policy, use=Use(held=held))


def test_calls_take_turns_of_the_members_until_all_are_full() -> None:
    done = made([lane(*[1] * 7)], member(1), member(2), member(3))
    assert [chosen[GROUP] for chosen in done.chosen.values()] == [1, 2, 3, 1, 2, 3]
    assert done.parked == {1: GROUP}
    assert done.openings == {GROUP: None}


FREE, MINE = Policy(), Policy(concurrency=5, per_worker=1)
REACHED = LockedKey(id=1, policy=MINE, use=Use(held=1, mine=1))
NOT_REACHED = LockedKey(id=2, policy=Policy(concurrency=2, per_worker=1), use=Use(mine=0))


@pytest.mark.parametrize(
    ("costs", "keys", "members", "chosen"),
    [
        pytest.param([1] * 4, [member(1, FREE), member(2, FREE)], None, {1: 2, 2: 2}, id="in turns without limits"),
        pytest.param([3, 1], [member(1), member(2)], None, {1: 1}, id="past a call that none ever allows"),
        pytest.param([1, 1], [member(1)], [1, 2], {1: 2}, id="past a locked one"),
        pytest.param([1], [REACHED, NOT_REACHED], None, {2: 1}, id="past the one of which the worker has its part"),
    ],
)
def test_a_member_is_chosen(costs: list[int], keys: list[LockedKey], members: Any, chosen: dict[int, int]) -> None:
    done = made([lane(*costs)], *keys, members=members)
    assert spread(done) == chosen
    assert [(key, cost) for _, key, cost in done.oversized] == [(GROUP, 3)] * (costs[0] == 3)
    assert done.left == {}


def test_a_lane_that_only_a_locked_member_could_let_go_is_left() -> None:
    for on_limit in OnLimit:
        done = made([lane(1, on_limit=on_limit)], member(1, held=2), members=[1, 2])
        assert done.left == {1: 2}
        assert [done.parked, done.dropped, done.rescheduled, done.oversized] == [{}, [], [], []]


def test_a_lane_that_another_key_stops_parks_there_and_not_on_a_locked_member() -> None:
    full = LockedKey(id=5, policy=Policy(concurrency=0))
    group = LockedKey(id=GROUP, policy=Policy(), members=[2])
    done = allocate([lane(1, keys=[GROUP, 5])], [full, group], now=NOW, tuning=TUNING, batch=9, reschedule_after=SECOND)
    assert (done.parked, done.left) == ({1: 5}, {})


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=5),
    st.lists(st.lists(st.integers(1, 4), max_size=5), min_size=1, max_size=4),
)
def test_no_member_exceeds_its_limit_and_no_room_is_left_that_fits(
    sizes: list[tuple[int, int]], costs: list[list[int]]
) -> None:
    keys = [
        member(number, Policy(concurrency=size), held=min(held, size)) for number, (size, held) in enumerate(sizes, 1)
    ]
    lanes = [lane(*each, number=number) for number, each in enumerate(costs, 1)]
    done = made(lanes, *keys)
    cost_of = {head.call_id: head.costs[GROUP] for each in lanes for head in each.heads}
    left = {key.id: (key.policy.concurrency or 0) - key.use.held for key in keys}
    for call in done.admitted:
        left[done.chosen[call][GROUP]] -= cost_of[call]
    assert all(room >= 0 for room in left.values())
    stopped = [cost_of[call] for call, _ in done.stopped if call not in {each for each, *_ in done.oversized}]
    assert all(cost > max(left.values(), default=0) for cost in stopped[:1])


def test_a_lane_waits_for_other_workers_where_the_worker_has_its_part_of_all_members() -> None:
    group = LockedKey(id=GROUP, policy=Policy(), members=[1], use=Use(held=1, mine=1))
    done = allocate([lane(1)], [REACHED, group], now=NOW, tuning=TUNING, batch=9, reschedule_after=SECOND)
    assert (done.admitted, list(done.held), done.reached, done.parked) == ([], [1], [GROUP], {})
