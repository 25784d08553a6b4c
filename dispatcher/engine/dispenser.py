"""Dispense: admit what may go, publish it, and look again until nothing is left; hand the room of a release on."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from time import monotonic
from uuid import UUID

from dispatcher import sql
from dispatcher.conf import conf, is_eager
from dispatcher.lanes import heads
from dispatcher.lifecycle import admit, finish, oversized, place, publish, wake
from dispatcher.lifecycle import recover as recovery

_HAND_OVER = 10
"""The most calls that one release admits; what is left is the next release's, or the tick's."""
REFILL = 100
"""The most calls that one release sends on the way to the workers of its queue."""
BRIEF_BATCH = 50
"""The most calls that one pass admits whose process has something else to do: a sender's, or a person's."""
_PASSES = 5
"""How many passes such a process makes at the most."""
_RELEASE_S = 0.1
"""How long it lets calls go on that waited alone."""
_FRUITLESS = 3
_LOCK_WAIT = timedelta(milliseconds=25)
"""How long a sender waits for another transaction that has made a key or lane which its calls need."""


@publish.eager_errors_last()
def dispense(
    *,
    lanes: Collection[int] = (),
    keys: Collection[int] = (),
    queues: Collection[str] = (),
    awake: bool = False,
    most: int | None = None,
    total: int | None = None,
    passes: int | None = None,
    until: float | None = None,
    now: datetime | None = None,
) -> int:
    """Admit what may go, publish it, and look again until nothing is left; return how many were admitted.

    lanes, keys, queues, awake, most: see lifecycle.admit; one pass takes `lanes_per_pass` of each, however many there
    are. The rest after `total` calls, `passes`, or the monotonic time `until`, is left to the next that comes along.
    Lanes that spend a key which somebody keeps locked are left out at first. At the end the key is waited for, for
    lifecycle.admit.KEY_WAIT; then its lanes are left to the next pass.
    """
    admitted = fruitless = made_passes = 0
    bound = conf().lanes_per_pass
    due = _Due(lanes=lanes, keys=keys, queues=queues, awake=awake)
    avoid, passed = set[int](), set[int]()
    locked: dict[int, int] = {}
    # A release of one key needs that one: it waits at once, or it would look in vain at a hot key.
    wait_for = None if lanes or queues or awake else _only(keys)
    while due or locked:
        if len(due.lanes) > bound:
            # Those awake are taken in order of service; a part of these would go before others of a higher priority.
            recovery.defer_lanes(due.lanes)
            due = replace(due, lanes=(), awake=True)
        if locked and (fruitless or not due):
            wait_for = next(iter(locked.values()))
            now_due = _Due(lanes=[lane for lane, key in locked.items() if key == wait_for][:bound])
            locked = {lane: key for lane, key in locked.items() if lane not in now_due.lanes}
            later = due
        else:
            now_due, later = due.split(bound)
        made = admit.admit(**vars(now_due), most=most, avoid=avoid, wait_for=wait_for, now=now)
        publish.publish(made.calls, now=now)
        sql.after_commit(partial(wake.notify, made.direct))
        admitted, made_passes = admitted + len(made.calls), made_passes + 1
        again = admit.recheck(made, now=now)
        stuck = admit.stuck_keys()
        # Lanes that were not named, and sleep now, are not taken again.
        is_fruitful = (
            made.has_moved
            or not avoid.issuperset(made.busy)
            or wait_for in stuck
            or not set(now_due.lanes).issuperset(made.allocation.asleep)
        )
        fruitless = 0 if is_fruitful else fruitless + 1
        avoid.update(made.busy)
        passed.update(now_due.keys if made.left else ())
        due = _Due(
            lanes={*again.lanes, *later.lanes},
            keys={*again.keys, *later.keys},
            queues={*again.queues, *later.queues},
            awake=(now_due.awake and is_fruitful) or later.awake,
        )
        wait_for = None
        locked |= {lane: key for lane, key in made.left.items() if key not in stuck}
        given_up = [lane for lane, key in made.left.items() if key in stuck]
        if given_up and _defer_lanes(given_up):
            # They stood in front of these keys, which may have room for those behind.
            due, passed = replace(due, keys={*due.keys, *passed}), set()
        is_over = (
            (until is not None and monotonic() > until)
            or (total is not None and admitted >= total)
            or (passes is not None and made_passes >= passes)
        )
        if is_over or fruitless == _FRUITLESS:
            _hold(recovery.defer(due.lanes, due.keys))
            _defer_lanes(locked)
            break
    return admitted


def _defer_lanes(lanes: Collection[int]) -> int:
    """Leave lanes that wait for a locked key to the next pass, or to workers; return how many were not awake."""
    if not lanes:
        return 0
    deferred = recovery.defer_lanes(lanes)
    _hold(lanes)
    return deferred


def _hold(lanes: Collection[int]) -> None:
    """Leave those of these lanes to workers that only these serve: they need no tick."""
    if lanes and not is_eager():
        wake.notify(set(wake.hold(lanes)))


@dataclass(frozen=True, kw_only=True)
class _Due:
    """Where a pass is to look."""

    lanes: Collection[int] = ()
    keys: Collection[int] = ()
    queues: Collection[str] = ()
    awake: bool = False

    def __bool__(self) -> bool:
        return bool(self.lanes or self.keys or self.queues or self.awake)

    def split(self, most: int) -> tuple["_Due", "_Due"]:
        """Return what the next pass takes, and what is left of the keys and queues for those after it."""
        keys, queues = list(self.keys), list(self.queues)
        return replace(self, keys=keys[:most], queues=queues[:most]), _Due(keys=keys[most:], queues=queues[most:])


def dispense_briefly(
    *,
    lanes: Collection[int] = (),
    keys: Collection[int] = (),
    queues: Collection[str] = (),
    awake: bool = False,
    most: int = BRIEF_BATCH,
    total: int | None = None,
) -> int:
    """Dispense in a few passes of a few calls, as who has something else to do; the rest is left to the dispenser.

    Where tasks run in the sender's own process, nothing is left: no dispenser is needed there.
    """
    if is_eager():
        return dispense(lanes=lanes, keys=keys, queues=queues, awake=awake)
    return dispense(lanes=lanes, keys=keys, queues=queues, awake=awake, most=most, total=total, passes=_PASSES)


def _only(keys: Collection[int]) -> int | None:
    """Return the key if there is exactly one and it is not stuck behind a lock."""
    return None if len(keys) != 1 else next((key for key in keys if key not in admit.stuck_keys()), None)


def hand_over(keys: Collection[int], lane: int | None = None) -> int:
    """Let the calls in that a release of these keys, in this lane, has made room for; return how many."""
    return fill(admit.released_room(keys, lane).row())


def fill(room: admit.ReleasedRoom) -> int:
    """Let the calls in that a release has made room for; return how many."""
    if room.queues:
        dispense_briefly(queues=room.queues, most=REFILL, total=REFILL)
    if not room.keys and not room.has_awake:
        return 0
    return dispense_briefly(keys=room.keys, awake=room.has_awake, most=_HAND_OVER, total=_HAND_OVER)


def serve(put_back: Iterable[finish.Released | None], *, now: datetime | None = None) -> int:
    """Dispense the lanes of calls that were put back, and the room that they gave up; return how many were.

    None is a call whose ticket was replaced.
    """
    found = [released for released in put_back if released is not None]
    if found:
        lanes = {released.lane_id for released in found}
        keys = {key for released in found for key in released.keys}
        dispense(lanes=lanes, keys=keys, awake=True, now=now)
    return len(found)


def serve_changed(positions: Mapping[int, int]) -> None:
    """Dispense where calls came to lanes, or left them, each with the first of the positions; after the commit."""
    serve_found(heads.changed(positions))


def serve_found(changed: heads.Changed) -> None:
    """Dispense where the change of lanes wants it."""
    if is_eager() and changed.direct:
        # Tasks run in the sender's process, whatever the delivery: no worker is needed.
        dispense_briefly(lanes=[*changed.lanes, *changed.held], keys=changed.keys)
        return
    if changed.held:
        wake.hold(changed.held, notified=changed.direct)
    if changed.lanes or changed.keys:
        dispense_briefly(lanes=changed.lanes, keys=changed.keys)


def serve_recorded(*, keys: Collection[int], unnoticed: Collection[str]) -> None:
    """Dispense keys after a call of a direct queue was recorded; wake a worker that has become idle meanwhile.

    unnoticed: queues whose lane is held since, while no worker was idle; one that is by now looked before.
    """
    wake.notify(unnoticed)
    if keys:
        dispense_briefly(keys=keys)


def serve_limited(keys: Collection[int]) -> None:
    """Dispense keys whose limits have changed; first let go on what waited alone and fits by now."""
    released = oversized.release(keys, until=monotonic() + _RELEASE_S)
    dispense_briefly(keys=keys, awake=released.calls > 0, total=BRIEF_BATCH)


def place_and_dispense(
    calls: Collection[UUID], *, lanes: Mapping[int, int] | None = None, lock_wait: timedelta = _LOCK_WAIT
) -> int:
    """Put calls that have no lane yet into theirs, dispense these and the other lanes; return how many were placed.

    lanes: each with the first of the positions that were sent to it.
    """
    placed = place.place(calls, lock_wait=lock_wait)
    there = [heads.Place(lane_id=lane, position=position) for lane, position in (lanes or {}).items()]
    serve_changed(heads.first([*there, *placed]))
    return len(placed)
