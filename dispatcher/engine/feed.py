"""The step of a feed: record what ended, admit and start what may start, in one transaction; then what that opens."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from time import monotonic
from typing import Final, TypeAlias
from uuid import UUID, uuid4

from dispatcher import event_log, sql
from dispatcher.ending import Ending
from dispatcher.engine import attempt, dispenser
from dispatcher.lifecycle import admit, claim, feed, finish, unstarted, wake
from dispatcher.lifecycle.finish import Ended
from dispatcher.limits.turns import Turns
from dispatcher.messages.message import Admitted

LEAD: Final = timedelta(milliseconds=10)
"""How far ahead a throttled start lies at the least: the way of the step's answer to the process."""


Handle: TypeAlias = tuple[UUID, UUID, UUID]
"""The call, the ticket and the claim of a start."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """A call that was started for the worker."""

    call: Admitted
    claimed: claim.Claimed
    keys: Collection[int] = ()
    """The keys that it spends."""
    is_followed: bool = False
    """Whether its lane is parked on one of them: the next call may start with its slots."""

    @property
    def handle(self) -> Handle:
        """What names this start in the database."""
        return self.call.id, self.call.ticket, self.claimed.claim_id

    def ended(self, ending: Ending) -> Ended:
        """Return that its attempt ended so, for a step to record."""
        call, claim_id = self.call, self.claimed.claim_id
        return Ended(call_id=call.id, ticket=call.ticket, claim_id=claim_id, ending=ending, keys=self.keys)


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one step did."""

    starts: Sequence[Start] = ()
    recorded: Collection[UUID] = ()
    """The calls whose ends were recorded; those of the others were recorded before, or their tickets replaced."""
    has_moved: bool = False
    """Whether another step may find more to do."""
    has_left: bool = False
    """Whether there are lanes that only a general step settles."""
    has_parked: bool = False
    """Whether a key was too full for a lane."""
    freed: Collection[int] = ()
    """Keys whose room the ends gave back."""
    openings: Mapping[int, datetime] = field(default_factory=dict)
    """Keys that stopped lanes, each with the time at which it opens."""
    busy: Collection[int] = ()
    """Keys that another transaction has locked, so that their lanes were left out."""
    reached: Collection[int] = ()
    """Keys of which the worker holds as much as one worker may, with lanes that others may serve."""
    open_keys: Collection[int] = ()
    """Keys that have room for lanes which the step did not look at."""
    has_held: bool = False
    """Whether there are lanes that may have more calls, for a worker with room."""
    refilled: Collection[int] = ()
    """Lanes that it put to sleep and that had calls after all: another step may start these."""
    handed_over: bool | None = None
    """Whether the one end handed its slots over; None if that was not tried."""


@dataclass(frozen=True, kw_only=True)
class Taker:
    """Who takes calls: a worker, the direct queues that it serves, and the tasks that it knows."""

    worker: UUID
    queues: Sequence[str]
    tasks: Sequence[str]
    delay: timedelta = timedelta(0)
    """How long a call lately took to a process at the most, beyond what limits allow for.

    A start under a throttle lies that much further ahead, and a window remembers a start that much longer.
    """
    turns: Turns = field(default_factory=Turns)
    """Which queue comes next, where their weights differ; counts what steps start."""
    begin: Callable[[Start], object] = field(default=lambda start: start)
    """Gives a call that has started to its process, before what the step opens for others is served."""


def step(
    taker: Taker,
    ends: Sequence[Ended] = (),
    *,
    room: int,
    keys: Collection[int] = (),
    avoid: Collection[int] = (),
    reached: Collection[int] = (),
    stuck: Collection[int] = (),
    is_general: bool = False,
) -> Step:
    """Record how attempts ended, and start up to `room` calls.

    keys: that time has opened, or that another transaction had locked. avoid: keys whose lanes are left out. reached:
    keys of which the worker holds as much as one worker may, whose lanes are left out, too, and delay no others. stuck:
    those of `avoid` that have been locked for so long that their lanes delay no others. is_general: by an ordinary
    pass, which settles what a plain step has left.
    """
    if room <= 0 or not taker.queues:
        return _record(ends)
    avoid = [*avoid, *reached]
    if is_general or stuck or event_log.is_kept():
        return _general(taker, ends, room=room, keys=keys, avoid=avoid, stuck=[*stuck, *reached])
    plain = _plain(taker, ends, room=room, keys=keys, avoid=avoid)
    left = room - len(plain.starts)
    if not plain.has_left or left <= 0:
        return plain
    reached = {*reached, *plain.reached}
    avoid = {*avoid, *reached}
    keys = {*keys, *plain.freed, *plain.open_keys}
    more = _general(taker, (), room=left, keys=keys, avoid=avoid, stuck=reached)
    return replace(
        more,
        starts=[*plain.starts, *more.starts],
        recorded=plain.recorded,
        has_moved=plain.has_moved or more.has_moved,
        has_parked=plain.has_parked or more.has_parked,
        freed=plain.freed,
        busy={*plain.busy, *more.busy},
        reached={*plain.reached, *more.reached},
        has_held=plain.has_held or more.has_held,
        refilled=plain.refilled,
    )


def hand_over(taker: Taker, end: Ended, *, room: int) -> Step:
    """Record how an attempt ended whose lane is parked on its keys, and start the next call with its slots.

    Where more is to be decided than that, an ordinary step follows, of up to `room` calls.
    """
    if event_log.is_kept() or taker.turns.shares():
        return step(taker, [end], room=room)
    asked_at = monotonic()
    row = feed.hand_over(finish.params_of([end]), worker=taker.worker, queues=taker.queues, tasks=taker.tasks)
    claim.observe(row.start_at, asked_at)
    if row.id is None:
        finish.report_many([end], row.calls)
        if row.asleep and (lanes := admit.look_again(asleep=row.asleep, full={}).lanes):
            dispenser.dispense_briefly(lanes=lanes)
        rest = step(taker, (), room=room, keys=row.freed)
        return replace(rest, recorded=row.calls, freed=row.freed, handed_over=False)
    start = _started(row, taker.delay, is_followed=True, is_counted=False)
    taker.begin(start)
    finish.report_many([end], row.calls)
    if keys := _look_again(row).keys:
        dispenser.dispense_briefly(keys=keys)
    return Step(starts=[start], recorded=row.calls, has_parked=True, freed=row.freed, handed_over=True)


def _record(ends: Sequence[Ended]) -> Step:
    """Record how attempts ended; a worker without room leaves the room that they give back to others."""
    if not ends:
        return Step()
    with sql.together():
        asked = finish.finish_many(ends)
    freed = asked.row()
    finish.report_many(ends, freed.calls)
    if freed.keys:
        dispenser.dispense_briefly(keys=freed.keys)
    return Step(recorded=freed.calls)


def _plain(taker: Taker, ends: Sequence[Ended], *, room: int, keys: Collection[int], avoid: Collection[int]) -> Step:
    asked_at = monotonic()
    taken = feed.take(
        finish.params_of(ends),
        worker=taker.worker,
        queues=taker.queues,
        tasks=taker.tasks,
        room=room,
        keys=keys,
        avoid=avoid,
        slack=taker.delay,
        shares=taker.turns.shares(),
        freed=_keys_of(ends),
    )
    chosen, first = taken.chosen, taken.rows[0]
    claim.observe(first.start_at, asked_at)
    starts = [
        _started(row, taker.delay, is_followed=bool(row.is_followed), is_counted=row.is_counted)
        for row in taken.rows
        if row.id is not None
    ]
    _begin(starts, taker)
    finish.report_many(ends, chosen.calls)
    found = _look_again(first, asleep=[*first.asleep, *chosen.asleep])
    if found.lanes:
        wake.hold(found.lanes)
    mine, others = _share(taken.opened, first.parked)
    if others := {*found.keys, *others}:
        dispenser.dispense_briefly(keys=others)
    # All lanes were looked at, unless as many were locked as a step takes.
    is_full = chosen.lanes >= room + feed.SPARE_LANES
    return Step(
        starts=starts,
        recorded=chosen.calls,
        has_moved=(is_full and bool(starts or first.asleep or first.parked)) or bool(first.reached_keys),
        has_left=bool(first.left_lanes or chosen.busy),
        has_parked=bool(first.parked),
        freed=chosen.keys,
        busy=chosen.busy,
        reached=first.reached_keys,
        open_keys={*mine, *(first.open_keys if is_full else ())},
        refilled=set(found.lanes),
        has_held=bool(found.lanes) or chosen.lanes > len(first.asleep) + len(first.parked),
    )


def _begin(starts: Sequence[Start], taker: Taker) -> None:
    taker.turns.note(start.call.queue for start in starts)
    for start in starts:
        taker.begin(start)


def _share(opened: Iterable[feed.Opened], parked: Collection[int]) -> tuple[set[int], set[int]]:
    """Return the keys that are open for the worker, and those for others; without those that the step has parked on.

    A key may be open by its slots and still stop a lane: it is paused, say, or the call costs more than is left.
    """
    found = [each for each in opened if each.lane not in parked]
    return {each.key for each in found if not each.is_others}, {each.key for each in found if each.is_others}


def _keys_of(ends: Sequence[Ended]) -> set[int]:
    return {key for each in ends for key in each.keys}


def _look_again(row: feed.StartedCall, *, asleep: Sequence[int] = ()) -> admit.Recheck:
    """Return where calls or room appeared while a statement decided; after its commit."""
    if not (asleep or row.full_keys):
        return admit.Recheck(lanes=[], keys=[])
    return admit.look_again(asleep=asleep, full=dict(zip(row.full_keys, row.full_held, strict=True)))


def _started(row: feed.StartedCall, slack: timedelta, *, is_followed: bool, is_counted: bool) -> Start:
    assert row.id and row.ticket and row.claim and row.task and row.queue and row.attempt  # noqa: S101, PT018
    call = Admitted(
        id=row.id,
        ticket=row.ticket,
        task=row.task,
        args=row.args or [],
        kwargs=row.kwargs or {},
        call_data=row.call_data,
        headers=row.headers,
        options=row.options,
        queue=row.queue,
        attempt=row.attempt - 1,
    )
    claimed = claim.Claimed(
        claim_id=row.claim,
        attempt=row.attempt,
        start_at=row.start_at,
        retry=row.retry,
        is_counted=is_counted,
        slack=slack,
    )
    return Start(call=call, claimed=claimed, keys=row.key_ids or (), is_followed=is_followed)


def _general(
    taker: Taker,
    ends: Sequence[Ended],
    *,
    room: int,
    keys: Collection[int],
    avoid: Collection[int],
    stuck: Collection[int],
) -> Step:
    freed = finish.Freed(calls=[], keys=[])
    returned: list[unstarted.Returned] = []
    with sql.own_transaction():
        if ends:
            freed = finish.finish_many(ends).row()
        opened = {*keys, *freed.keys}
        done = admit.admit_direct(
            worker=taker.worker,
            queues=taker.queues,
            keys=opened,
            avoid=avoid,
            stuck=stuck,
            most=room,
            shares=taker.turns.shares(),
        )
        unknown = [call for call in done.calls if call.task not in taker.tasks]
        for call in unknown:
            back = unstarted.put_back(call.id, call.ticket, is_unknown=True)
            returned += [back] if back is not None else []
        starts, cancelled = _start([call for call in done.calls if call not in unknown], taker)
    starts = [replace(start, keys=done.spent.get(start.call.id, ())) for start in starts]
    _begin(starts, taker)
    finish.report_many(ends, freed.calls)
    found = feed.find_opened(opened, queues=taker.queues, avoid=avoid).rows() if opened else ()
    mine, others = _share(found, done.allocation.parked)
    _serve(others, done, returned, cancelled)
    return Step(
        starts=starts,
        recorded=freed.calls,
        has_moved=done.allocation.has_moved or bool(done.allocation.reached),
        has_parked=bool(done.allocation.parked),
        openings={key: at for key, at in done.allocation.openings.items() if at is not None},
        freed=freed.keys,
        busy=done.busy,
        reached=done.allocation.reached,
        open_keys=mine,
        has_held=bool(done.allocation.held),
    )


def _start(calls: Sequence[Admitted], taker: Taker) -> tuple[list[Start], list[UUID]]:
    """Start admitted calls in the same transaction; return them, and those that were revoked before."""
    if not calls:
        return [], []
    numbers = {call.id: uuid4() for call in calls}
    started = {row.id: row for row in claim.start_many(numbers, worker=taker.worker, slack=taker.delay)}
    starts, revoked = [], []
    for call in calls:
        if (row := started.get(call.id)) is not None:
            claimed = claim.Claimed(
                claim_id=numbers[call.id],
                attempt=row.attempt,
                start_at=row.start_at,
                retry=row.retry,
                is_counted=row.is_counted,
                slack=taker.delay,
            )
            starts.append(Start(call=call, claimed=claimed))
            continue
        lead = LEAD + taker.delay
        match claim.claim(call.id, call.ticket, claim_id=numbers[call.id], worker=taker.worker, lead=lead):
            case claim.Claimed() as claimed:
                starts.append(Start(call=call, claimed=claimed))
            case claim.Refused.EXPIRED:
                finish.expire(call.id, call.ticket)
            case claim.Refused.REVOKED:
                revoked.append(call.id)
            case _:
                attempt.put_back(call.id, call.ticket)
    return starts, revoked


def _serve(
    other: Collection[int],
    done: admit.Pass,
    returned: Sequence[unstarted.Returned],
    revoked: Sequence[UUID],
) -> None:
    """Serve what the step has opened, or left, for others; after its commit."""
    for call in revoked:
        if (released := attempt.cancel(call)) is not None:
            dispenser.dispense_briefly(lanes=[released.lane_id], keys=released.keys)
    for each in returned:
        dispenser.dispense_briefly(lanes=[each.lane_id], keys=each.keys)
    again = admit.recheck(done)
    if again.lanes or again.keys or other:
        dispenser.dispense_briefly(lanes=again.lanes, keys={*other, *again.keys})


def open_to_others(keys: Collection[int]) -> None:
    """Let the queues hold lanes that are parked on these keys, which are open, and wake idle workers for them."""
    dispenser.dispense_briefly(keys=keys)


def tune() -> None:
    """Tune this thread's connection, which only a feed uses, for its steps."""
    feed.tune()
