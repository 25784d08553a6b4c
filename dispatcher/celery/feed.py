"""The feed of a worker: it takes calls of direct queues from PostgreSQL and gives them to the pool.

A thread with its own connection records what has ended and starts what may start, in one transaction. Calls of queues
that the broker delivers come to the same pool as before.
"""

import logging
from collections.abc import Callable, Collection
from threading import Event, Thread
from time import monotonic, sleep
from typing import Final
from uuid import UUID

from django.db import connections

from dispatcher import sql
from dispatcher.celery import feed_runs, heartbeat
from dispatcher.celery.feed_agenda import Agenda
from dispatcher.celery.feed_ends import Ends, Taken
from dispatcher.celery.feed_mark import IdleMark
from dispatcher.celery.feed_pace import Pace
from dispatcher.celery.feed_pool import Pool
from dispatcher.celery.feed_queues import DirectQueues
from dispatcher.celery.feed_runs import Run
from dispatcher.celery.feed_starting import Starting
from dispatcher.celery.feed_waiting import Waiting
from dispatcher.conf import conf
from dispatcher.engine import attempt
from dispatcher.engine import fed as engine_fed
from dispatcher.engine import feed as engine_feed
from dispatcher.engine.feed import Start, Taker
from dispatcher.lifecycle import claim, wake
from dispatcher.reports import faults

logger = logging.getLogger(__name__)

_LOOK_S: Final = 5.0
"""How often a worker looks which of its queues are direct, and at their weights, and for calls whose sender woke no
worker; at least once a heartbeat."""
_FIRST_REST_S: Final = 0.05
"""How often a worker looks whether its first heartbeat is recorded."""
_LEAVE_S: Final = 0.05
"""How often a worker without room leaves calls to others at the most."""
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
        self._ends = Ends(forget=self._forget, restart=self._restart)
        self._runs: dict[UUID, Run] = {}
        """By claim."""
        self._starting = Starting()
        self._returning: list[Run] = []
        """Calls to give back; whether the database has done so may be unknown, so they run no more."""
        self._agenda = Agenda()
        self._pace = Pace()
        self._queues = DirectQueues(queues)
        self._may_take = Event()
        self._is_over = False
        self._mark = IdleMark(worker)
        self._thread: Thread | None = None
        self._pause = _PAUSE_S
        self._is_lost = True
        """Whether there was no connection since the last step, so that its answer may be lost."""
        self._is_waiting_for_ends = False
        """Whether it waits until more ends have come, up to a time: the next one need not wake it."""
        self._has_left = False
        """Whether the last step left lanes that only a general one can serve."""
        self._has_more = False
        """Whether the last step left lanes that may have more calls, for which no other worker was woken."""
        self._leave_at = 0.0
        self._refilled: frozenset[int] = frozenset()

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
            if self._is_over and not self._ends and attempt.running().isdisjoint(self._runs):
                break
        self._end()

    def _end(self) -> None:
        try:
            engine_fed.give_back([run.start.handle for run in [*self._runs.values()] if run.accepted_at is None])
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
        """Make another connection in the next turn: the answer of a step may be lost with this one."""
        self.waiting.forget_connection()
        self._is_lost = True
        sql.discard_connection()

    def _turn(self) -> None:
        """Make one step, and wait for what makes the next one useful."""
        if not (self._queues.names or self._runs or heartbeat.has_direct()):
            self._rest()
            return
        if self._is_lost:
            self._connect()
        if self._may_take.is_set() and self._queues.look_up(keep_s=self._look_s):
            self._mark.remove()
        for run in self._starting.take_due():
            self._give(run)
        self._give_back_old()
        self.waiting.clear()
        if self._is_gathering():
            self._is_waiting_for_ends = True
            self.waiting.wait(self._ends.first_at + _GATHER_S, is_idle=False)
            self._is_waiting_for_ends = False
            return
        ends = self._ends.take()
        room = self._room(len(ends))
        has_moved = False
        if ends or (room > 0 and self._queues.names):
            # Without room a step would not look at them.
            has_moved = self._step(ends, room, self._agenda.take_due() if room > 0 else set())
        self._leave_to_others()
        if not has_moved and not self._ends:
            self._wait()

    def _rest(self) -> None:
        """Keep no connection while no queue is direct; a heartbeat finds those that are."""
        if not self._is_lost:
            wake.delete(self.worker)
            self._lose_connection()
        rest_s = _FIRST_REST_S if heartbeat.has_direct() is None else self._look_s
        self.waiting.wait(monotonic() + rest_s, is_idle=False)

    def _connect(self) -> None:
        """Listen, and give back what a step has started whose answer was lost."""
        sql.discard_connection()
        self.waiting.listen()
        if self.waiting.is_notified:
            engine_feed.tune()
        known = {run.start.claimed.claim_id for run in self._runs.values()}
        reserved = {call for call, _ in heartbeat.reserved_calls()}
        if returned := engine_fed.give_back_unknown(self.worker, known, reserved):
            logger.warning("worker %s gives %d calls back: the answer of their start was lost", self.name, returned)
        self._mark.forget()
        self._is_lost = False
        self._agenda.forget_reached()
        if self._ends.in_doubt:
            engine_feed.open_to_others(self._ends.in_doubt)
            self._ends.in_doubt.clear()

    def _room(self, ended: int = 0) -> int:
        """Return how many calls more may start; so many have ended and are not recorded yet."""
        if not self._may_take.is_set() or self.pool is None:
            return 0
        return self.pool.size - self.pool.busy_elsewhere() + self._pace.ahead(self.pool.size) + ended - len(self._runs)

    def _is_gathering(self) -> bool:
        """Whether more ends are waited for: the pool has calls for all of its processes, and the next end is near."""
        if not self._ends or self._is_over or not self._has_next():
            return False
        return monotonic() - self._ends.first_at < _GATHER_S

    def _has_next(self) -> bool:
        """Whether the pool has more calls than processes; in any thread."""
        return self.pool is not None and len(self._runs) - len(self._ends) > self.pool.size

    def _step(self, ends: Taken, room: int, keys: set[int]) -> bool:
        """Record and start; return whether another step may find more."""
        room = room if self._queues.names else 0
        now = monotonic()
        avoid = self._agenda.locked(now)
        for run, _ in ends:
            self._agenda.forget_reached(run.start.keys)
        try:
            made = self._ask(ends, room, keys, avoid, now)
        except BaseException as fault:
            for key in keys:
                self._agenda.remind(0.0, key)
            if ends and isinstance(fault, sql.DATABASE_ERRORS) and sql.is_refused(fault):
                self._lose_connection()
                self._ends.record_apart(ends)
                return True
            self._ends.take_again(ends)
            raise
        self._has_left = made.has_left
        for run, _ in ends:
            self._pace.learn(run)
            self._forget(run)
        if room > 0:
            self._has_more = made.has_held
        self._note_keys(made)
        self._agenda.note_busy(made.busy, avoid, now)
        self._agenda.keep_while_busy({*keys, *made.freed})
        if made.reached:
            self._agenda.note_reached(made.reached)
            # An idle worker may have looked in vain while this one had their lanes locked.
            wake.notify(self._queues.names)
        if made.starts:
            self.waiting.rest()
        # A lane that is refilled again and again, and starts nothing: another transaction has its calls locked.
        has_new = bool(made.refilled) and (bool(made.starts) or not self._refilled.issuperset(made.refilled))
        self._refilled = frozenset(made.refilled)
        return (made.has_moved or has_new or bool(made.open_keys)) and self._room() > 0

    def _ask(self, ends: Taken, room: int, keys: set[int], avoid: Collection[int], now: float) -> engine_feed.Step:
        taker = self._taker(self._queues.names if room > 0 else [])
        reached = self._agenda.reached(now)
        is_alone = len(ends) == 1 and not (keys or avoid or reached or self._has_left)
        if is_alone and room > 0 and ends[0][0].start.is_followed and self._pace.may_hand_over:
            return engine_feed.hand_over(taker, ends[0][1], room=room)
        return engine_feed.step(
            taker,
            [ended for _, ended in ends],
            room=room,
            keys=keys,
            avoid=avoid,
            reached=reached,
            stuck=self._agenda.stuck(now),
            is_general=self._has_left,
        )

    def _note_keys(self, made: engine_feed.Step) -> None:
        """Note when to look at keys again, and that others could use the slots of one that is full."""
        for key, at in made.openings.items():
            self._agenda.remind(claim.monotonic_of(at), key)
        for key in made.open_keys:
            self._agenda.remind(0.0, key)
        if made.has_parked:
            self._pace.tighten()
        if made.handed_over is False:
            self._pace.note_not_handed_over()

    def _leave_to_others(self) -> None:
        """Wake an idle worker for what this one has no room for: lanes with calls, keys that are open."""
        if self._room() > 0 or not self._queues.names or monotonic() < self._leave_at:
            return
        if keys := self._agenda.take_due():
            self._leave_at = monotonic() + _LEAVE_S
            engine_feed.open_to_others(keys)
        elif self._has_more:
            self._leave_at = monotonic() + _LEAVE_S
            wake.notify(self._queues.names)
            self._has_more = False

    def _taker(self, queues: list[str]) -> Taker:
        return Taker(
            worker=self.worker,
            queues=queues,
            tasks=self._tasks(),
            delay=self._pace.slack,
            turns=self._queues.turns,
            begin=self._begin,
        )

    def _begin(self, start: Start) -> None:
        if start.claimed.is_paced:
            self._pace.tighten()
        run = Run(start=start, on_end=self._on_end)
        self._runs[start.claimed.claim_id] = run
        feed_runs.add(run)
        at = claim.monotonic_of(start.claimed.start_at) - self._pace.lead_s
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
            engine_fed.give_back([run.start.handle for run in runs])
            self._returning.clear()
            for run in runs:
                self._forget(run)

    def _forget(self, run: Run) -> None:
        self._runs.pop(run.start.claimed.claim_id, None)
        self._agenda.forget_reached(run.start.keys)
        feed_runs.drop(run)

    def _on_end(self, run: Run) -> None:
        self._ends.add(run)
        if self.pool is not None:
            self.pool.free(run)
        if not (self._is_waiting_for_ends and self._has_next()):
            self.waiting.wake()

    def _restart(self, run: Run) -> None:
        """Give a call that its process could not begin in time another start."""
        self._pace.note_missed()
        again = engine_fed.restart(run.start, self._taker(self._queues.names)) if self._may_take.is_set() else None
        if again is None and not self._may_take.is_set():
            engine_fed.give_back([run.start.handle])
        self._forget(run)
        if again is not None:
            self._begin(again)

    def _wait(self) -> None:
        if self._is_over:
            self.waiting.wait(monotonic() + _LAST_S, is_idle=False)
            return
        room = self._room()
        is_idle = room > 0 and bool(self._queues.names)
        reached = self._agenda.reached(monotonic())
        must_mark = is_idle and self.waiting.is_notified and not self._mark.says(reached)
        if must_mark and self._mark.write(self._queues.names, reached, keep_s=self._look_s):
            return
        if not is_idle:
            self._mark.remove()
        if not self.waiting.is_woken:
            self.waiting.wait(self._next_due(room), is_idle=is_idle)
            self._mark.expire()
        if self.waiting.is_woken:
            self.waiting.is_woken = False
            self._mark.forget()
            if self._room() <= 0 or self._mark.reached or self._agenda.reached(monotonic()):
                # Another worker may be idle; this one has no room, or was woken for a call that it leaves to others.
                wake.notify(self._queues.names)

    def _next_due(self, room: int) -> float:
        """Return when there is something to do at the latest, as a monotonic time."""
        dues = [monotonic() + self._look_s]
        if (at := self._starting.next_at) is not None:
            dues.append(at)
        if self.pool is not None and (at := self.pool.oldest_at) is not None:
            dues.append(at + _KEEP_S)
        if (at := self._agenda.next_at) is not None:
            dues.append(at if room > 0 else max(at, self._leave_at))
        if self._has_more and room <= 0:
            dues.append(self._leave_at)
        return min(dues)
