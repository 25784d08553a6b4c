"""What must hold after each trip, whatever the text of `take` and of its reference say: both could share a mistake."""

from collections.abc import Iterator
from copy import deepcopy
from math import inf
from typing import Any

from tests.rules.reference import (
    MILLISECOND,
    Answer,
    Call,
    Key,
    Lane,
    Limits,
    Slot,
    Start,
    State,
    Trip,
    all_keys,
    is_alive,
    opening,
    room,
)

SOON = 100 * MILLISECOND


def faults(before: State, after: State, trip: Trip, answer: Answer) -> list[str]:
    """Return what a trip has done against the rules."""
    started = answer.started
    return [
        *_unannounced(before, after, trip, answer),
        *_exceeded(before, after, trip, started),
        *_out_of_order(after, started),
        *_passed_over(before, after, trip, started),
        *_forgotten(after, trip),
    ]


def _in_force(key: Key, now: int) -> Any:
    if key.is_observed:
        return Limits()
    return key.override if key.override_until is not None and key.override_until > now else key.limits


def _exceeded(before: State, after: State, trip: Trip, started: list[Any]) -> Iterator[str]:
    """No key that the trip has started something of holds more than its limits allow."""
    for id in {slot.key for slot in after.slots if slot.call in started and slot.key in after.keys}:
        key = after.keys[id]
        limits = _in_force(key, trip.now)
        slots = [slot for slot in after.slots if slot.key == id]
        if limits.concurrency is not None and sum(slot.cost for slot in slots) > limits.concurrency:
            yield f"key {id} holds more than {limits.concurrency}"
        mine = sum(slot.cost for slot in slots if slot.worker == trip.worker and slot.worker is not None)
        if limits.per_worker is not None and mine > limits.per_worker:
            yield f"worker holds {mine} of key {id}"
        if key.is_paused or (key.blocked_until is not None and key.blocked_until > trip.now):
            yield f"key {id} is closed"


def _out_of_order(after: State, started: list[Any]) -> Iterator[str]:
    """Within a lane calls start in order of their positions."""
    for lane in after.lanes.values():
        calls = sorted((call for call in after.calls if call.lane == lane.id), key=lambda call: call.position)
        places = [n for n, call in enumerate(calls) if call.id in started]
        yield from (f"{call.id} was passed" for call in calls[: max(places, default=0)] if call.waits)


def _passed_over(before: State, after: State, trip: Trip, started: list[Any]) -> Iterator[str]:
    """No call of lower priority takes from a key what one of higher priority of the same worker could have had.

    A trip reads no more lanes of a queue than it has room for calls, those among them that its notes made ready, though
    they have no calls any more. Where its room is used up, what it publishes is not the same worker's.
    """
    if trip.is_strict or trip.becomes != "active" or not trip.tuning.any_delivery:
        return
    front = {lane.id for queue in trip.queues for lane in _read(before, trip).front(0, queue)[: trip.room]}
    own = [call for call in after.calls if call.id in started and call.state == "active"]
    least = min((_priority(after, call) for call in own), default=inf) if len(own) >= trip.room else -inf
    ready = [
        lane
        for lane in after.lanes.values()
        if lane.queue in trip.queues and after.waiting(lane.id)
        if lane.id in front or (before.lanes[lane.id].place or 0) > 0
        if lane.priority > least
    ]
    for lane in ready:
        head = after.waiting(lane.id)[0]
        place = before.lanes[lane.id].place
        lower = [call for call in after.calls if call.id in started and _priority(after, call) < lane.priority]
        shared = {slot.key for slot in after.slots if slot.call in {call.id for call in lower}}
        if not lower or place is None or not (shared & {*all_keys(after, lane)} if place <= 0 else place in shared):
            continue
        waits_for = {each.place for each in after.lanes.values() if each.priority >= lane.priority and each is not lane}
        if waits_for & {*all_keys(after, lane)}:  # behind another that takes its turn first
            continue
        is_brokers = after.deliveries.get(lane.queue, "broker") == "broker"
        if is_brokers and is_per_worker(after, place, trip.now):  # it may wait for good, see _forgotten
            continue
        if trip.tasks is not None and head.task not in trip.tasks:
            continue
        world = deepcopy(before)
        world.slots = [slot for slot in world.slots if any(each.call == slot.call for each in after.slots)]
        for call in after.calls:
            if call.id in started and _priority(after, call) >= lane.priority:
                _start(world, after, call)
        if _could_start(world, lane, head, trip):
            yield f"lane {lane.id} was passed by {[call.id for call in lower]}"


def _read(before: State, trip: Trip) -> State:
    """Return the state with the lanes ready that are noted, or get back a call that ends."""
    state = deepcopy(before)
    forced = {note.lane for note in before.notes if note.at <= trip.now and note.is_forced}
    forced |= {end.call.lane for end in trip.ends if end.state == "available" and not end.is_stale}
    noted = {note.lane for note in before.notes if note.at <= trip.now}
    for lane in state.lanes.values():
        if lane.id in forced or (lane.place is None and lane.id in noted):
            lane.place = 0
    return state


def _priority(state: State, call: Call) -> int:
    return state.lanes[call.lane].priority


def _start(world: State, after: State, call: Call) -> None:
    for slot in [slot for slot in after.slots if slot.call == call.id]:
        world.slots.append(Slot(*slot))
        if slot.key is not None:
            starts = world.starts.setdefault(slot.key, [])
            at = max(call.started_at or 0, starts[-1].at if starts else 0)
            starts.append(Start(at, (starts[-1].total if starts else 0) + slot.cost, slot.cost, slot.cost))


def _could_start(state: State, lane: Lane, call: Call, trip: Trip) -> bool:
    until = trip.now + trip.tuning.horizon
    for id in all_keys(state, lane):
        if id not in state.keys:
            continue
        cost, key = cost_of(state, lane, call, id), state.keys[id]
        members = state.members(key)
        each = [room(state, one, trip.worker, trip.now, trip.tuning) for one in (key, *members)]
        fits = [one.is_open(cost, until) and one.own >= cost and one.fits >= cost for one in each]
        if not fits[0] or (key.is_group and not any(fits[1:])):
            return False
    return True


def _forgotten(after: State, trip: Trip) -> Iterator[str]:
    """Find lanes with calls that are not ready, noted, or parked on a key that an end or a note opens.

    Where room of a key is kept for a lane that waits for another of its keys, the others may wait until it is kept no
    longer; who waits for a group, until that holds for none of its members that is open.

    Not judged: how long the broker's calls wait for a key with a limit per worker, or for a group with such a member.
    That mixture is refused, and where it arises all the same they wait until it is changed (decision 0020): for good,
    though other members of the group have room, since one of those with a limit may be chosen each time.
    """
    for lane in after.lanes.values():
        waiting = after.waiting(lane.id)
        if not waiting or lane.kept_until is not None:
            continue
        if lane.place is None:
            if not any(note.lane == lane.id for note in after.notes):
                yield f"lane {lane.id} sleeps with calls"
            continue
        if lane.place <= 0 or lane.place not in after.keys or _is_looked_at(after, lane.place):
            continue
        at = _noted(after, lane.place)
        is_brokers = after.deliveries.get(lane.queue, "broker") == "broker"
        if is_brokers and is_per_worker(after, lane.place, trip.now):
            continue
        latest = _latest(after, after.keys[lane.place], _most_cost(after, lane.place), trip)
        if latest is not None and (at is None or at > latest):
            yield f"lane {lane.id} is parked on {lane.place}, which is to be noted for {latest} and is for {at}"


def is_per_worker(state: State, key: int | None, now: int) -> bool:
    """Return whether a key or a member of it has a limit per worker now."""
    mine = state.keys.get(key or 0)
    keys = [] if mine is None else [mine, *state.members(mine)]
    return any(_in_force(each, now).per_worker is not None for each in keys)


def _is_looked_at(state: State, key: int) -> bool:
    """Return whether a lane that is ready spends the key, or room of it is kept for one: a trip will look at it."""
    return any(
        (lane.place in (0, -1) and key in all_keys(state, lane)) or (lane.place == key and lane.kept_until is not None)
        for lane in state.lanes.values()
    )


def _kept_until(state: State, key: int) -> float:
    """Return until when room of a key is kept for lanes; 0: it is not."""
    kept = [lane.kept_until for lane in state.lanes.values() if lane.kept_until and key in all_keys(state, lane)]
    return max((until for until in kept if until < inf), default=0)


def _noted(state: State, key: int) -> int | None:
    keys = {key, *(member.id for member in state.members(state.keys[key]))}
    return min((note.at for note in state.notes if note.key in keys), default=None)


def _most_cost(state: State, key: int) -> int:
    """Return the most that a call costs which is the first of its lane, and waits for a key; 0: none does."""
    firsts = [(lane, call) for lane in state.parked(key) for call in state.waiting(lane.id)[:1]]
    return max((cost_of(state, lane, call, key) for lane, call in firsts), default=0)


def cost_of(state: State, lane: Lane, call: Call, key: int) -> int:
    """Return what a call costs of a key."""
    costs = call.key_costs or []
    n = lane.key_ids.index(key) if key in lane.key_ids else len(lane.key_ids)
    return (costs[n] if n < len(costs) else None) or 1


def _latest(state: State, key: Key, cost: int, trip: Trip) -> float | None:
    """Return by when a key is to be looked at for a call of this cost; None: not before an end or a change.

    What waits for a member itself goes first: its room is not a group's while that waits.
    """

    def when(one: Key, cost: int = cost) -> float | None:
        allowed = room(state, one, None, trip.now, trip.tuning)
        if allowed.fits < cost:
            return None
        is_open = allowed.is_open(cost, trip.now + trip.tuning.horizon)
        at = trip.now if is_open else opening(state, allowed, cost, trip.now, trip.tuning)
        return None if at is None else max(at + trip.tuning.horizon, trip.now + SOON, _kept_until(state, one.id))

    own = when(key)
    if own is None or not key.is_group:
        return own
    times = [
        at for member in state.members(key) if (at := when(member, max(cost, _most_cost(state, member.id)))) is not None
    ]
    return max(own, min(times)) if times else None


def _is_bounded(after: State, trip: Trip, queue: str) -> bool:
    """Return whether a trip dispatches no more of a queue: no worker serves it, or enough are on their way."""
    ahead, most = trip.tuning.ahead, max(trip.room, trip.publish)
    unclaimed = sum(call.state == "dispatched" and after.lanes[call.lane].queue == queue for call in after.calls)
    is_served = any(queue in each.queues and each.serves_until > trip.now for each in after.workers.values())
    return (trip.tuning.needs_worker and not is_served) or ahead - unclaimed < max(1, min(most, ahead // 100))


def _unannounced(before: State, after: State, trip: Trip, answer: Answer) -> Iterator[str]:
    """Find lanes that a trip made ready without publishing them or waking an idle worker."""
    for lane in after.lanes.values():
        if lane.place != 0 or before.lanes[lane.id].place == 0 or not after.waiting(lane.id):
            continue
        if after.deliveries.get(lane.queue, "broker") == "broker":
            if lane.queue not in answer.publish and not _is_bounded(after, trip, lane.queue):
                yield f"lane {lane.id} of {lane.queue} is ready, and no dispenser is asked"
        elif not any(lane.queue in before.processes[id].queues for id in answer.wake):
            idle = [
                id
                for id, mark in after.processes.items()
                if mark.idle_at is not None and lane.queue in mark.queues and id != trip.process
                if is_alive(after, mark, trip)
            ]
            if idle:
                yield f"lane {lane.id} of {lane.queue} is ready, and {idle} sleep"
