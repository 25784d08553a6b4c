"""Who goes now, against a model that goes one call at a time and counts everything again for each."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.limits.allocate import Allocation, Head, LockedKey, LockedLane, allocate
from dispatcher.limits.policy import AdmissionTuning, Policy, Rate, Use, next_opening, room, throttle_room
from dispatcher.states import OnLimit

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
TUNING = AdmissionTuning(horizon=SECOND / 5, margin=SECOND / 20)
LATER = 5 * SECOND

rates = st.builds(Rate, limit=st.integers(1, 6), period=st.sampled_from([SECOND, 10 * SECOND]))
policies = st.builds(
    Policy,
    concurrency=st.none() | st.integers(0, 6),
    rate=st.none() | rates,
    throttle=st.none() | st.builds(Rate, limit=st.sampled_from([1, 5, 20]), period=st.just(SECOND)),
)
uses = st.builds(
    Use,
    held=st.integers(0, 4),
    unstarted=st.integers(0, 2),
    starts=st.lists(st.tuples(st.sampled_from([NOW - SECOND / 2, NOW - 5 * SECOND]), st.integers(1, 3)), max_size=2),
    next_start_at=st.sampled_from([None, NOW - SECOND, NOW + SECOND / 10, NOW + SECOND]),
)
World = tuple[list[LockedLane], list[LockedKey], int]
blocks = st.sampled_from([None, None, NOW - SECOND, NOW + SECOND])


@st.composite
def passes(draw: st.DrawFn) -> World:
    """Make the lanes of a pass in the order in which they are served, their keys, and the size of its batch."""
    keys = [
        LockedKey(
            id=number,
            policy=draw(policies),
            use=draw(uses),
            is_paused=draw(st.integers(0, 9)) == 0,
            blocked_until=draw(blocks),
        )
        for number in range(1, draw(st.integers(1, 4)) + 1)
    ]
    lanes = []
    for number in range(draw(st.integers(1, 6))):
        key_ids = sorted(draw(st.sets(st.sampled_from([key.id for key in keys]))))
        costs = st.dictionaries(st.sampled_from(key_ids), st.integers(1, 4)) if key_ids else st.just({})
        heads = [
            Head(call_id=UUID(int=1000 * number + place), costs=draw(costs)) for place in range(draw(st.integers(0, 4)))
        ]
        lanes.append(
            LockedLane(
                id=number,
                priority=draw(st.integers(-1, 1)),
                on_limit=draw(st.sampled_from(OnLimit)),
                key_ids=key_ids,
                heads=heads,
                has_more=draw(st.booleans()) if heads else False,
                yields_to_higher_priority=draw(st.integers(0, 9)) == 0,
            )
        )
    return sorted(lanes, key=lambda lane: -lane.priority), keys, draw(st.integers(1, 12))


def made(lanes: Sequence[LockedLane], keys: Sequence[LockedKey], batch: int = 100) -> Allocation:
    return allocate(lanes, keys, now=NOW, tuning=TUNING, batch=batch, reschedule_after=LATER)


# The model


@dataclass
class Model:
    """One pass, call by call: what is spent is counted from the calls let in so far, again for every question."""

    lanes: Sequence[LockedLane]
    keys: Mapping[int, LockedKey]
    batch: int
    stopped: set[int] = field(default_factory=set)
    """Keys that a call waits for: no call behind passes."""
    spent: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    ends: dict[UUID, str] = field(default_factory=dict)
    lane_ends: dict[int, str] = field(default_factory=dict)

    def go(self) -> "Model":
        for priority in sorted({lane.priority for lane in self.lanes}, reverse=True):
            waiting = {lane.id: (lane, iter(lane.heads)) for lane in self.lanes if lane.priority == priority}
            while waiting:
                for number, (lane, heads) in list(waiting.items()):
                    if not self._one(lane, heads):
                        del waiting[number]
        return self

    def _one(self, lane: LockedLane, heads: Iterator[Head]) -> bool:
        """Decide a lane's next call; return whether it may go on."""
        if lane.yields_to_higher_priority or sum(end == "admitted" for end in self.ends.values()) == self.batch:
            self.lane_ends[lane.id] = "awake" if lane.heads else "asleep"
            return False
        head = next(heads, None)
        if head is None:
            self.lane_ends[lane.id] = "awake" if lane.has_more else "asleep"
            return False
        for key in lane.key_ids:
            if self._is_oversized(key, head.costs.get(key, 1)):
                self.ends[head.call_id] = "dropped" if lane.on_limit is OnLimit.DROP else f"set aside for {key}"
                return True
        for key in lane.key_ids:
            if not self._lets_in(key, head.costs.get(key, 1)):
                return self._stop(lane, head, key)
        for key in lane.key_ids:
            self.spent[key] += head.costs.get(key, 1)
        self.ends[head.call_id] = "admitted"
        return True

    def _stop(self, lane: LockedLane, head: Head, key: int) -> bool:
        if lane.on_limit is OnLimit.DROP:
            self.ends[head.call_id] = "dropped"
            return True
        if lane.on_limit is OnLimit.RESCHEDULE:
            self.ends[head.call_id] = "rescheduled"
            return True
        self.stopped.add(key)
        self.lane_ends[lane.id] = f"parked on {key}"
        return False

    def _is_oversized(self, number: int, cost: int) -> bool:
        policy = self.keys[number].policy
        return (policy.concurrency or cost) < cost or (policy.rate is not None and policy.rate.limit < cost)

    def _lets_in(self, number: int, cost: int) -> bool:
        key = self.keys[number]
        if number in self.stopped or key.is_paused or (key.blocked_until or NOW) > NOW:
            return False
        spent = self.spent[number]
        use = replace(key.use, held=key.use.held + spent, unstarted=key.use.unstarted + spent)
        return room(key.policy, use, NOW, TUNING) >= cost and throttle_room(key.policy, use, NOW, TUNING) >= 1


@settings(max_examples=500)
@given(passes())
def test_a_pass_decides_as_if_every_call_was_counted_alone(world: World) -> None:
    lanes, keys, batch = world
    decided, model = made(lanes, keys, batch), Model(lanes, {key.id: key for key in keys}, batch).go()
    ends = [(call, "admitted") for call in decided.admitted]
    ends += [(call, "dropped") for call, _ in decided.dropped]
    ends += [(call, "rescheduled") for call, _ in decided.rescheduled]
    ends += [(call, f"set aside for {key}") for call, key, _ in decided.oversized]
    assert sorted(ends) == sorted(model.ends.items()), "each call has one end"
    lane_ends = [*((lane, "awake") for lane in decided.awake), *((lane, "asleep") for lane in decided.asleep)]
    lane_ends += [(lane, f"parked on {key}") for lane, key in decided.parked.items()]
    assert sorted(lane_ends) == sorted(model.lane_ends.items()), "each lane ends awake, asleep or parked"


# What must hold, whatever the model says


@given(passes())
def test_no_key_is_ever_given_more_than_its_room(world: World) -> None:
    lanes, keys, batch = world
    admitted = set(made(lanes, keys, batch).admitted)
    assert len(admitted) <= batch
    for key in keys:
        costs = [
            head.costs.get(key.id, 1)
            for lane in lanes
            if key.id in lane.key_ids
            for head in lane.heads
            if head.call_id in admitted
        ]
        assert sum(costs) <= room(key.policy, key.use, NOW, TUNING)
        if key.is_paused or (key.blocked_until or NOW) > NOW:
            assert not costs
        if key.policy.throttle and costs:
            assert sum(costs) - max(costs) < throttle_room(key.policy, key.use, NOW, TUNING)


@given(passes())
def test_a_lane_goes_in_order_of_sending(world: World) -> None:
    lanes, keys, batch = world
    decided = made(lanes, keys, batch)
    gone = {*decided.admitted, *(call for call, _ in decided.dropped), *(call for call, _ in decided.rescheduled)}
    aside = {call for call, _, _ in decided.oversized}
    for lane in lanes:
        calls = [head.call_id for head in lane.heads if head.call_id not in aside]
        assert [call for call in calls if call in gone] == calls[: len(gone.intersection(calls))]
        admitted = [call for call in decided.admitted if call in calls]
        assert admitted == sorted(admitted)


@given(passes())
def test_a_key_that_stopped_a_lane_opens_later_or_by_a_release_or_a_person(world: World) -> None:
    lanes, keys, batch = world
    decided = made(lanes, keys, batch)
    by_id = {key.id: key for key in keys}
    assert set(decided.openings) == set(decided.parked.values())
    for number, at in decided.openings.items():
        key = by_id[number]
        if at is None:
            # Time does not open it: so somebody has to resume it, or a running call has to end.
            assert key.is_paused or key.policy.concurrency is not None
        else:
            assert at > NOW
    assert not set(decided.keys_with_room).intersection(decided.openings)
    assert all(at > NOW for _, at in decided.rescheduled)


def _lane(number: int, *, calls: int = 1, costs: Sequence[int] = (), on_limit: OnLimit = OnLimit.WAIT) -> LockedLane:
    each = [*costs, *[1] * (calls - len(costs))]
    heads = [Head(call_id=UUID(int=100 * number + place), costs={1: cost}) for place, cost in enumerate(each)]
    return LockedLane(id=number, key_ids=[1], heads=heads, on_limit=on_limit)


def _call(lane: LockedLane, place: int = 0) -> UUID:
    return lane.heads[place].call_id


@pytest.mark.parametrize(("before", "has_moved"), [(1, False), (2, True), (None, True)])
def test_a_lane_that_is_parked_on_the_same_key_again_has_not_moved(*, before: int | None, has_moved: bool) -> None:
    decided = made([replace(_lane(1), parked_on=before)], [LockedKey(id=1, policy=Policy(concurrency=0))])
    assert (decided.parked, decided.has_moved) == ({1: 1}, has_moved)


def test_calls_are_rescheduled_to_when_their_windows_have_room_for_each() -> None:
    rate = Rate(limit=2, period=10 * SECOND)
    use = Use(starts=((NOW - 4 * SECOND, 1), (NOW - 3 * SECOND, 1)))
    lane = _lane(1, calls=3, on_limit=OnLimit.RESCHEDULE)
    decided = made([lane], [LockedKey(id=1, policy=Policy(rate=rate), use=use)])
    times = [at for _, at in decided.rescheduled]
    assert [call for call, _ in decided.rescheduled] == [head.call_id for head in lane.heads]
    assert times[:2] == [NOW + 6 * SECOND + TUNING.margin, NOW + 7 * SECOND + TUNING.margin]
    assert times[2] > times[1]
    assert times[0] == next_opening(Policy(rate=rate), use, 1, NOW, TUNING)


def test_a_call_that_was_put_off_does_not_hide_when_the_key_opens_for_those_who_wait() -> None:
    """It may be cancelled, or expire: then no pass would come before the time that was written down."""
    start = NOW - timedelta(seconds=50)
    key = LockedKey(id=1, policy=Policy(rate=Rate(limit=1, period=timedelta(minutes=1))), use=Use(starts=[(start, 1)]))
    opens = start + timedelta(minutes=1) + TUNING.margin
    put_off, waits = _lane(1, on_limit=OnLimit.RESCHEDULE), _lane(2)
    decided = made([put_off, waits], [key])
    assert [at for _, at in decided.rescheduled] == [opens]
    assert decided.openings == {1: opens}


def test_a_key_with_room_left_is_named_for_the_lanes_that_are_parked_on_it() -> None:
    decided = made([_lane(1)], [LockedKey(id=1, policy=Policy(concurrency=2))])
    assert decided.keys_with_room == [1]
    assert made([_lane(1)], [LockedKey(id=1, policy=Policy(concurrency=1))]).keys_with_room == []


def test_what_a_pass_lets_in_counts_for_when_the_key_opens() -> None:
    rate = Rate(limit=2, period=10 * SECOND)
    decided = made([_lane(1, calls=3)], [LockedKey(id=1, policy=Policy(rate=rate))])
    assert len(decided.admitted) == 2
    assert decided.openings == {1: NOW + 10 * SECOND + TUNING.margin}
