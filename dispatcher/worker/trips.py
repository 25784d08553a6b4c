"""The trips of a process: each records what has ended, and takes what starts next, for all of its loops that wait.

A process of a forked pool has one loop. In pools of threads or greenlets one of the loops that wait makes the trips,
and sleeps on the process's only connection, for all of them.
"""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from threading import Condition
from time import monotonic, sleep
from typing import ClassVar, Final
from uuid import UUID

from dispatcher import sql
from dispatcher.engine import direct
from dispatcher.lifecycle import claim
from dispatcher.lifecycle.take import Notes, Taken, Taker
from dispatcher.limits.turns import Turns
from dispatcher.worker.call import Run
from dispatcher.worker.ends import Ends
from dispatcher.worker.session import LOOK_S, Session
from dispatcher.worker.shared import Place, Shared

logger = logging.getLogger(__name__)

_LAST_S: Final = 5.0
"""How long a process that takes no more calls tries to record the ends of those it had."""
_GATHER_S: Final = 0.003
"""In a stream of short runs, while no key is full: how long it waits for more calls and ends before it looks again, for
each call that the latest trip has started."""
_GATHER_CALLS: Final = 5
"""For how many of these at the most: with 5, PostgreSQL spends a fifth less on a call than with 1; with 8, fewer calls
end a second."""
_GATHER_TRIPS: Final = 2
"""In such a stream: how much longer than the latest trip it waits, at the least."""
_LONGEST_TRIP_S: Final = 0.05
"""How long a trip counts as for that, and for batches, at the most: its server may have been away for seconds."""
_GATHERS: Final = 3
"""How often it does so in vain before the process is idle."""
_PAUSE_S: Final = 0.1
"""How long it rests after a trip that failed by its own fault."""


@dataclass(eq=False, kw_only=True)
class Waiter:
    """A loop that waits for calls."""

    place: Place
    room: int
    """How many it takes at the most."""
    is_new: bool = False
    """Whether it makes a trip before it leaves: where one process serves both, messages and calls alternate."""
    runs: list[Run] = field(default_factory=list)
    reports: list[Callable[[], object]] = field(default_factory=list)
    """What calls the receivers of the ends that its trip has recorded."""


class Trips:
    """The trips of one process."""

    current: ClassVar["Trips | None"] = None
    """Those of the latest worker: tests run one after the other in a process, in a thread."""

    def __init__(self, worker: UUID, tasks: Sequence[str], shared: Shared) -> None:
        """Take nothing yet. tasks: those that the process knows."""
        self.worker, self.tasks, self._shared = worker, tasks, shared
        self.pid = os.getpid()
        self.done = 0
        """How many calls have ended in it."""
        self.session = Session(worker)
        self.ends = Ends()
        self._notes = Notes()
        self._turns, self._weights = Turns(), dict[str, int]()
        self._changed = Condition()
        self._waiters: list[Waiter] = []
        self._leader: Waiter | None = None
        self.is_over = False
        """Whether all loops leave for good."""
        self._gathered = _GATHERS
        self._again_at = inf
        """When the latest trips asked to come again, by the monotonic clock."""
        self._gather_until = 0.0
        """Until when the next trip waits for more ends, by the monotonic clock."""
        self.takes_ahead = self._is_full = False
        """Whether the latest trip left calls that could start; and some that wait for the room of a key."""
        self.took_s = 0.0
        """How long the latest trip took; one that took long counts as less."""

    def next(self, waiter: Waiter) -> bool:
        """Record what has ended, and give the loop what starts next; return whether it goes on: False if it must leave.

        Receivers are left to the loop that made the trip: meanwhile another one makes the next.
        """
        with self._changed:
            self._waiters.append(waiter)
            if self._leader is not None:
                self.session.interrupt()
            while self._leader is not None and not waiter.runs and not self.is_over:
                self._changed.wait()
            if waiter.runs or self.is_over:
                self._forget(waiter)
                return bool(waiter.runs)
            self._leader = waiter
        try:
            return self._lead(waiter)
        finally:
            with self._changed:
                self._leader = None
                self._forget(waiter)
                self._changed.notify_all()

    def leave(self) -> None:
        """Have all loops leave that wait, or come back."""
        self.is_over = True
        self.session.interrupt()

    def finish(self, waiter: Waiter) -> None:
        """Record what has ended, once no loop is left here; the connection is kept while queues are direct.

        What can't be recorded in time, the main process records.
        """
        with self._changed:
            while self._leader is not None:
                self._changed.wait()
        until = monotonic() + _LAST_S
        while (len(self.ends) or self.ends.next_at) and monotonic() < until:
            self._make(waiter)
        waiter.place.keep(self.ends.unrecorded)
        self.ends.drop()
        try:
            if self._shared.queues and not self.is_over:
                self.session.unmark()
            else:
                self.session.close()
        except sql.DATABASE_ERRORS as fault:
            logger.warning("worker %s could not unmark a process: %s", self.worker, fault)
            self.session.drop()

    def _lead(self, waiter: Waiter) -> bool:
        """Make trips until one has something for this loop; return whether it goes on."""
        while True:
            must_leave = self._must_leave()
            if self.is_over or (must_leave and not waiter.is_new):
                return False
            if self._gather_until > monotonic() and waiter.room > 1:
                self.session.sleep(self._gather_until, self._shared.leave_read)
            self._make(waiter, may_sleep=not must_leave)
            if must_leave or waiter.runs or waiter.reports or not waiter.room:
                return not must_leave

    def _forget(self, waiter: Waiter) -> None:
        if waiter in self._waiters:
            self._waiters.remove(waiter)

    def _must_leave(self) -> bool:
        asked = self._shared.must_leave()
        if asked is None:
            self.is_over = True
        return self.is_over or bool(asked)

    def _make(self, leader: Waiter, *, may_sleep: bool = True) -> None:
        """Make one trip, and sleep if it has started nothing."""
        try:
            with self.session.used():
                self._step(leader, may_sleep=may_sleep)
        except sql.DATABASE_ERRORS as fault:
            self._pause_after(fault, leader.place)
        except Exception:
            logger.exception("a trip of worker %s failed, and is made again", self.worker)
            self._lose(leader.place)
            sleep(_PAUSE_S)

    def _pause_after(self, fault: BaseException, place: Place) -> None:
        if sql.is_locked(fault):
            place.end_trip()
        elif sql.is_unavailable(fault):
            self._lose(place)
        self.session.pause_after(fault)

    def _lose(self, place: Place) -> None:
        """Make another connection; the answer of a trip may be lost with this one."""
        place.end_trip(is_lost=True)
        self.session.drop()

    def _step(self, leader: Waiter, *, may_sleep: bool) -> None:
        self._prepare()
        session = self.session
        with self._changed:
            # Without those that have been given theirs, and have not gone on with it yet.
            waiters = [leader, *(each for each in self._waiters if each is not leader and not each.runs)]
        room = sum(each.room for each in waiters)
        gathers = self._gathered < _GATHERS and not self._is_full and any(each.room > 1 for each in waiters)
        may_rest = session.may_rest and room > 0 and may_sleep and not gathers
        # Before the ends are taken, which are lost with a failure between here and the trip.
        is_marked = not session.take_woken() and session.is_marked
        ends = self.ends.take()
        leader.place.begin_trip()
        try:
            taken = self._take(waiters, ends, room=room, is_marked=is_marked, may_rest=may_rest)
        except BaseException as fault:
            if ends and isinstance(fault, sql.DATABASE_ERRORS) and sql.is_refused(fault):
                leader.place.end_trip()
                self.ends.record_apart(ends)
                return
            self.ends.take_again(ends)
            raise
        # See `take`: who has parked a lane, and finds another one, comes again first.
        session.is_marked = may_rest and not taken.starts and (is_marked or not taken.has_more)
        self._is_full, self.takes_ahead = taken.is_full, taken.has_more and not taken.is_full
        is_stream = self._gathered < _GATHERS and 0 < len(taken.starts) < room and not taken.is_full
        gather_s = max(_GATHER_S * min(len(taken.starts), _GATHER_CALLS), _GATHER_TRIPS * self.took_s)
        self._gather_until = monotonic() + gather_s if is_stream else 0.0
        if leader.reports:
            # Who is busy with them must not be woken for calls.
            session.unmark()
            may_sleep = False
        if room or self.ends.next_at:
            self._rest(taken, may_sleep=may_sleep, is_marked=is_marked, may_rest=may_rest, gathers=gathers)

    def _prepare(self) -> None:
        """Have the turns of the queues that are direct now, and a connection."""
        queues = self._shared.queues
        if queues != self._weights:
            self.session.unmark()  # so that the next mark names them
            self._turns.set_weights(queues)
            self._weights = queues
        if not self.session.is_open:
            self.session.open([*queues])

    def _take(self, waiters: Sequence[Waiter], ends: list[Run], *, room: int, is_marked: bool, may_rest: bool) -> Taken:
        """Make the trip itself, by the process's connection."""
        taker = Taker(
            worker=self.worker,
            process=self.session.process,
            queues=[*self._weights],
            tasks=self.tasks,
            delay=self.session.delay,
            paced_delay=claim.slack(),
            turns=self._turns,
            notes=self._notes,
        )
        began = monotonic()
        taken = direct.step(
            taker,
            [run.ended for run in ends],
            room=room,
            is_marked=is_marked,
            may_rest=may_rest,
            begin=lambda taken: self._begin(taken, waiters, ends, taker),
            report=waiters[0].reports.append,
        )
        self.took_s = min(monotonic() - began, _LONGEST_TRIP_S)
        return taken

    def _begin(self, taken: Taken, waiters: Sequence[Waiter], ends: list[Run], taker: Taker) -> None:
        """Give what has started to the loops that wait, each as much as it has room for, and note it."""
        self.ends.settle(ends, taken.locked)
        runs = [Run(start=each, slack=taker.paced_delay if each.is_paced else taker.delay) for each in taken.starts]
        with self._changed:
            while runs:
                for waiter in waiters:
                    if runs and len(waiter.runs) < waiter.room:
                        waiter.runs.append(runs.pop(0))
            unrecorded = self.ends.unrecorded
            for waiter in waiters:
                is_first = waiter is waiters[0]
                waiter.place.hold([*(run.handle for run in waiter.runs), *(self.ends.handles if is_first else ())])
                waiter.place.keep(unrecorded if is_first else [])
            waiters[0].place.end_trip()
            if len(waiters) > 1:
                self._changed.notify_all()

    def _rest(self, taken: Taken, *, may_sleep: bool, is_marked: bool, may_rest: bool, gathers: bool) -> None:
        """Sleep until another trip may find something; not at all if this one has started calls."""
        session = self.session
        if taken.starts:
            if session.note_start():
                # The sender that has woken this process may have meant another call.
                direct.wake_another(self._weights)
            self._gathered = 0
            return
        now = monotonic()
        again_at = inf if taken.again_at is None else claim.monotonic_of(taken.again_at)
        # A look before it does not find it again: its lane is parked, and noted, by then.
        self._again_at = min(again_at, self._again_at if self._again_at > now else inf)
        until = min(each for each in (now + LOOK_S, self._again_at, self.ends.next_at) if each is not None)
        if gathers:
            self._gathered += 1
            until = min(until, now + _GATHER_S)
        elif may_rest:
            until = min(until, now + session.look_s(is_marked=is_marked))
        if until > now and may_sleep:
            session.sleep(until, self._shared.leave_read)
