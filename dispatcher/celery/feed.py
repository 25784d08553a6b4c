"""The feed of a worker: it takes calls of direct queues from PostgreSQL and gives them to the pool.

A thread with its own connection records what has ended and starts what may start, in one trip. Calls of queues that the
broker delivers come to the same pool as before.
"""

import logging
from collections.abc import Callable
from threading import Event, Thread
from time import monotonic, sleep
from typing import Final
from uuid import UUID

from django.db import connections

from dispatcher import sql
from dispatcher.celery import fed, feed_ends, feed_runs, heartbeat
from dispatcher.celery.feed_ends import Ends
from dispatcher.celery.feed_mark import IdleMark
from dispatcher.celery.feed_pace import Pace
from dispatcher.celery.feed_pool import Pool
from dispatcher.celery.feed_queues import DirectQueues
from dispatcher.celery.feed_runs import Run
from dispatcher.celery.feed_starting import Starting
from dispatcher.celery.feed_waiting import Waiting
from dispatcher.conf import conf
from dispatcher.engine import attempt
from dispatcher.engine import feed as engine_feed
from dispatcher.lifecycle import claim, wake
from dispatcher.lifecycle.take import Notes, Start, Taken, Taker
from dispatcher.sql import faults

logger = logging.getLogger(__name__)

_LOOK_S: Final = 5.0
"""How often a worker looks which of its queues are direct, and at their weights, and for calls whose sender woke no
worker; at least once a heartbeat."""
_FIRST_REST_S: Final = 0.05
"""How often a worker looks whether its first heartbeat is recorded."""
_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 3.0
_KEEP_S: Final = 0.05
"""How long a call that was started ahead waits for a process before it goes back."""
_FLUSH_S: Final = 5.0
_LAST_S: Final = 0.1
"""How often a feed that has ended looks whether its process still runs a call."""
_GATHER_S: Final = 0.008
"""How long an end waits for others while every process of the pool has its next call."""


class Feed:
    """The feed of one worker, a thread."""

    def __init__(
        self, worker: UUID, name: str, queues: Callable[[], list[str]], tasks: Callable[[], list[str]]
    ) -> None:
        """Take nothing yet."""
        self.worker, self.name, self._tasks = worker, name, tasks
        self.waiting = Waiting(worker)
        self.pool: Pool | None = None
        self._ends = Ends(forget=self._forget)
        self._runs: dict[UUID, Run] = {}
        """By ticket."""
        self._starting = Starting()
        self._returning: list[Run] = []
        """Calls to give back; whether the database has done so may be unknown, so they run no more."""
        self._pace = Pace()
        self._queues = DirectQueues(queues)
        self._may_take = Event()
        self._is_over = False
        self._mark = IdleMark(worker)
        self._notes = Notes()
        self._thread: Thread | None = None
        self._pause = _PAUSE_S
        self._is_lost = True
        """Whether there was no connection since the last trip, so that its answer may be lost."""
        self._is_waiting_for_ends = False
        """Whether it waits until more ends have come, up to a time: the next one need not wake it."""
        self._is_due = True
        """Whether a trip is due at once."""
        self._again_at = 0.0
        """When the next one is due, whatever else happens (monotonic)."""

    @property
    def _look_s(self) -> float:
        return min(_LOOK_S, conf().heartbeat.total_seconds())

    def resume(self, pool: Pool) -> None:
        """Take calls for this pool."""
        self.pool = pool
        self._may_take.set()
        if self._thread is None:
            # Under gevent a greenlet: the pool's greenlets are spawned from the thread of their hub.
            self._thread = Thread(target=self._run, name="dispatcher-feed", daemon=True)
            self._thread.start()
        self.waiting.wake()

    def pause(self) -> None:
        """Take no more calls; ends are recorded as before."""
        self._may_take.clear()
        self.waiting.wake()

    def finish(self) -> None:
        """Record the ends of what has run, and end; wait a bounded time for it."""
        self._may_take.clear()
        self._is_over = True
        self.waiting.wake()
        if self._thread is not None:
            self._thread.join(_FLUSH_S)

    def _run(self) -> None:
        while True:
            try:
                self._turn()
            except sql.DATABASE_ERRORS as fault:
                self._pause_after(fault)
            except Exception:
                logger.exception("the feed of worker %s failed, and goes on", self.name)
                self._lose_connection()
                sleep(self._pause)
            else:
                self._pause = _PAUSE_S
            # Only this feed can record the ends of what threads or greenlets of this process still run.
            if self._is_over and not (self._ends or self._ends.locked) and attempt.running().isdisjoint(self._runs):
                break
        self._end()

    def _end(self) -> None:
        try:
            engine_feed.give_back([run.handle for run in [*self._runs.values()] if run.accepted_at is None])
            if not self._is_lost:
                wake.delete(self.worker)
        except sql.DATABASE_ERRORS as fault:
            logger.warning("worker %s failed to end its feed: %s", self.name, fault)
        connections.close_all()

    def _pause_after(self, fault: BaseException) -> None:
        if not faults.report_unmigrated(fault):
            logger.warning("the feed of worker %s has no database, again in %.1f s: %s", self.name, self._pause, fault)
        self._lose_connection()
        if self._is_over and self._pause >= _LONGEST_PAUSE_S:
            self._ends.drop()
        sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_S)

    def _lose_connection(self) -> None:
        """Make another connection in the next turn: the answer of a trip may be lost with this one."""
        self.waiting.forget_connection()
        self._is_lost = True
        sql.discard_connection()

    def _turn(self) -> None:
        """Make one trip, if there is something to do, and wait for what makes the next one useful."""
        if not (self._queues.names or self._runs or heartbeat.has_direct()):
            self._rest()
            return
        if self._is_lost:
            self._connect()
        if self._may_take.is_set() and self._queues.look_up(keep_s=self._look_s):
            self._is_due = True
        for run in self._starting.take_due():
            self._give(run)
        self._give_back_old()
        self.waiting.clear()
        if self._is_gathering():
            self._is_waiting_for_ends = True
            self.waiting.wait(self._ends.first_at + _GATHER_S, is_idle=False)
            self._is_waiting_for_ends = False
            return
        # An end with a transaction of its own frees a process, too.
        is_due = bool(self._ends) or self._has_reason()
        ends = self._ends.take()
        if is_due and not self.waiting.is_woken:
            self._mark.renew(keep_s=self._look_s)
        if ends or is_due:
            self._take(ends)
        if not (self._ends or self._has_reason()):
            self._wait()

    def _has_reason(self) -> bool:
        """Whether a trip may find something, though nothing has ended."""
        return self._is_due or self.waiting.is_woken or monotonic() >= self._again_at

    def _rest(self) -> None:
        """Keep no connection while no queue is direct; a heartbeat finds those that are."""
        if not self._is_lost:
            wake.delete(self.worker)
            self._lose_connection()
        rest_s = _FIRST_REST_S if heartbeat.has_direct() is None else self._look_s
        self.waiting.wait(monotonic() + rest_s, is_idle=False)

    def _connect(self) -> None:
        """Listen, and give back what a trip has started whose answer was lost."""
        sql.discard_connection()
        self.waiting.listen()
        reserved = {call for call, _ in heartbeat.reserved_calls()}
        if returned := engine_feed.give_back_unknown(self.worker, self._runs.keys(), reserved):
            logger.warning("worker %s gives %d calls back: the answer of their start was lost", self.name, returned)
        self._mark.forget()
        self._is_lost = False
        self._is_due = True

    def _room(self) -> int:
        """Return how many calls more may start."""
        if not self._may_take.is_set() or self.pool is None:
            return 0
        running = sum(1 for run in self._runs.values() if run.ended_at is None)
        return max(0, self.pool.size + self._pace.ahead(self.pool.size) - self.pool.busy_elsewhere() - running)

    def _is_gathering(self) -> bool:
        """Whether more ends are waited for: the pool has calls for all of its processes, and the next end is near."""
        if not self._ends or self._is_over or not self._has_next():
            return False
        return monotonic() - self._ends.first_at < _GATHER_S

    def _has_next(self) -> bool:
        """Whether the pool has more calls than processes; in any thread."""
        return self.pool is not None and len(self._runs) - len(self._ends) > self.pool.size

    def _take(self, ends: feed_ends.Taken) -> None:
        """Record and start, in one trip."""
        room = self._room() if self._queues.names else 0
        is_woken, self.waiting.is_woken, self._is_due = self.waiting.is_woken, False, False
        ended = [each for _, each in ends]
        try:
            taken = engine_feed.step(self._taker(), ended, room=room, is_marked=is_woken, begin=self._begin)
        except BaseException as fault:
            self.waiting.is_woken |= is_woken
            if ends and isinstance(fault, sql.DATABASE_ERRORS) and sql.is_refused(fault):
                self._is_due = True
                self._ends.record_apart(ends)
                return
            self._ends.take_again(ends)
            raise
        if is_woken:
            self._mark.note_woken()
        self._note(taken, room)
        for run, _ in ends:
            self._pace.learn(run)
        self._ends.settle(ends, taken.locked)

    def _note(self, taken: Taken, room: int) -> None:
        """Note when the next trip is due, and learn whether limits stop calls."""
        now = monotonic()
        again = now + self._look_s if taken.again_at is None else claim.monotonic_of(taken.again_at)
        self._again_at = min(again, now + self._look_s, self._again_at if self._again_at > now else again)
        if taken.starts:
            self.waiting.rest()
        if len(taken.starts) < room and any(start.keys for start in taken.starts):
            # A limit may have stopped the next one: others could use the slots of what is started ahead.
            self._pace.tighten()

    def _taker(self) -> Taker:
        return Taker(
            worker=self.worker,
            queues=self._queues.names,
            tasks=self._tasks(),
            delay=self._pace.slack,
            notes=self._notes,
            turns=self._queues.turns,
        )

    def _begin(self, start: Start) -> None:
        if start.is_paced:
            self._pace.tighten()
        run = Run(start=start, on_end=self._on_end, slack=self._pace.slack)
        self._runs[start.call.ticket] = run
        feed_runs.add(run)
        at = claim.monotonic_of(start.start_at) - self._pace.lead_s
        if at <= monotonic():
            self._give(run)
        else:
            self._starting.add(at, run)

    def _give(self, run: Run) -> None:
        if run.ended_at is None and self.pool is not None:
            self.pool.give(run)

    def _give_back_old(self) -> None:
        """Leave to other workers what was started ahead, if no process has become free for it in time."""
        if self.pool is not None and (old := self.pool.take_back(monotonic() - _KEEP_S)):
            self._returning.extend(old)
            # Else it would take them again.
            self._pace.note_returned()
        if self._returning:
            # One that was revoked meanwhile has an end to record.
            runs = [run for run in self._returning if run.ended_at is None]
            engine_feed.give_back([run.handle for run in runs])
            self._returning.clear()
            for run in runs:
                self._forget(run)
            self._is_due = True

    def _forget(self, run: Run) -> None:
        if isinstance(run.end, fed.Missed):
            self._pace.note_missed()
        self._runs.pop(run.start.call.ticket, None)
        feed_runs.drop(run)

    def _on_end(self, run: Run) -> None:
        self._ends.add(run)
        if self.pool is not None:
            self.pool.free(run)
        if not (self._is_waiting_for_ends and self._has_next()):
            self.waiting.wake()

    def _wait(self) -> None:
        if self._is_over:
            self.waiting.wait(monotonic() + _LAST_S, is_idle=False)
            return
        queues = self._queues.names if self._may_take.is_set() else []
        has_room = self._room() > 0 and bool(queues)
        is_idle = has_room and self.waiting.is_notified
        if not (self.waiting.is_woken or self._mark.says(queues, is_idle=is_idle)):
            self._mark.write(queues, is_idle=is_idle, keep_s=self._look_s)
            if is_idle:
                self._is_due = True
                return
        if not self.waiting.is_woken:
            self.waiting.wait(self._next_due(), is_idle=has_room)

    def _next_due(self) -> float:
        """Return when there is something to do at the latest, as a monotonic time."""
        dues = [self._again_at, self._starting.next_at, self._ends.next_at]
        if self.pool is not None and (oldest_at := self.pool.oldest_at) is not None:
            dues.append(oldest_at + _KEEP_S)
        return min(due for due in dues if due is not None)
