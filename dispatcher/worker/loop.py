"""The loop of a pool's process, thread or greenlet: take calls, run them, and take the next ones with their ends."""

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from math import inf
from threading import Event, Lock, Thread
from time import monotonic, sleep
from typing import Any, ClassVar, Final
from uuid import UUID

from billiard import pool
from billiard.compat import mem_rss
from billiard.exceptions import SoftTimeLimitExceeded, Terminated, TimeLimitExceeded
from celery import Celery, current_app
from django.db import connections

from dispatcher import ending, sql
from dispatcher.celery import failures, results
from dispatcher.ending import Ending
from dispatcher.engine import direct
from dispatcher.errors import WorkerLost
from dispatcher.lifecycle.claim import Refused
from dispatcher.lifecycle.run import ProcessEnds
from dispatcher.states import State
from dispatcher.worker import call
from dispatcher.worker.call import Run
from dispatcher.worker.shared import Shared
from dispatcher.worker.trips import Trips, Waiter

logger = logging.getLogger(__name__)

_MOST: Final = 16
"""How many calls a loop takes at once at the most; ahead only where a key has room for as many more (see take.sql)."""
_AHEAD_S: Final = 0.025
"""How long all runs of a batch take, by the mean of the latest."""
_TRIPS: Final = 2
"""How much longer than the latest trip, at the least: where many processes wait for a lane, each comes less often."""
_SHORT_S: Final = 0.005
"""Runs that are longer are taken one by one, unless calls are left that could start: others could run them, or use
their room."""
_PACED_S: Final = 1.0
"""For how long calls are taken one by one after a throttle gave a start: the next one must not wait for this run."""
_LATE_S: Final = 0.05
"""What waits in a batch goes back when a run takes so long."""
_HANGS_S: Final = 5.0
"""For how long receivers are waited for without a word in the log."""
_FAILED_S: Final = 1.0
"""How long the place of a loop that has failed stays empty: a fault that stays fills neither log nor processor."""
_LAST_READS: Final = 50
"""How often, 0.1 s apart, a process that ends looks whether the main process has read all of its results."""
_RECYCLE: Final = 0x9B
"""The status with which a process of billiard's pool exits that has done its share."""
_TERMINATED: Final = 128 + signal.SIGTERM
"""The status with which a process exits that the main process ends."""
_WEIGHT: Final = 0.3
"""How much the latest run counts in the mean."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the main process gives its loops."""

    worker: UUID
    hostname: str
    tasks: Sequence[str]
    is_forked: bool
    """Whether each loop has a process of its own."""
    soft: float | None = None
    hard: float | None = None
    """The time limits of tasks without limits of their own, in seconds."""
    most_calls: int | None = None
    """After how many calls a process is replaced."""
    most_kb: int | None = None
    """With how much memory a process is replaced."""


class Loop:
    """Runs the calls of one place in shared memory."""

    one_by_one: ClassVar[Any] = None
    """A lock that a pool without processes of its own holds while it runs a task."""

    def __init__(self, app: Celery, index: int, trips: Trips, shared: Shared, options: Options) -> None:
        """Run nothing yet."""
        self.app, self.options, self.trips, self.shared = app, options, trips, shared
        self.place = shared.place(index)
        self.in_task = False
        """Whether a task runs, so that its soft time limit may be raised."""
        self._mean_s = 1.0
        self._paced_until = 0.0
        self._waiting: list[Run] = []
        """Those of the batch that have not begun, the next one last."""
        self._lock = Lock()
        self._began_at = inf
        self._watch: Thread | None = None
        self._has_batch = Event()
        """Whether there is something behind what runs now."""
        self._reported_s = 0.0
        """How long the receivers of the latest ends took."""
        self.is_reporting = False
        self._has_result_due = False
        """Whether it has cut off a call whose end the next trip records: only then its result can be stored."""
        self._greenlet: Any = None
        """That of the task that runs, where it runs in one."""
        self._interruption: BaseException | None = None
        """Why that was ended."""
        self.has_left = self.is_terminated = False

    @property
    def is_spent(self) -> bool:
        """Whether its process is to be replaced."""
        options = self.options
        if not (options.is_forked and self.trips.done):
            return False
        return bool(
            (options.most_calls and self.trips.done >= options.most_calls)
            or (options.most_kb and mem_rss() > options.most_kb)
        )

    def run(self) -> None:
        """Take calls and run them until the loop is asked to leave."""
        self.place.enter(self.trips.session.process)
        goes_on, is_new = True, True
        while goes_on and not (self.is_terminated or self.is_spent):
            waiter = Waiter(place=self.place, room=self._room(), is_new=is_new)
            goes_on, is_new = self.trips.next(waiter), False
            if self._has_result_due:
                self._has_result_due = False
                results.report_soon(self.app)
            self._run_all(waiter)

    def finish(self) -> None:
        """Record what is left, as the last loop of its process."""
        self._put_back(self._take_waiting())
        waiter = Waiter(place=self.place, room=0)
        self.trips.finish(waiter)
        self._run_all(waiter)

    def end(self) -> None:
        """Let its thread end."""
        self.has_left = True
        self._has_batch.set()

    def _room(self) -> int:
        if self._reported_s > _LATE_S and len(self.trips.ends):
            # Calls that it took together with these ends would wait behind the receivers.
            return 0
        is_short = self._mean_s < _SHORT_S or self.trips.takes_ahead
        takes_many = is_short and monotonic() > self._paced_until
        ahead_s = max(_AHEAD_S, _TRIPS * self.trips.took_s)
        most = max(1, min(_MOST, int(ahead_s / self._mean_s))) if takes_many else 1
        left = self.options.most_calls
        return most if left is None else max(1, min(most, left - self.trips.done))

    def _run_all(self, waiter: Waiter) -> None:
        self._waiting = [*reversed(waiter.runs)]
        if waiter.reports or len(waiter.runs) > 1:
            self._has_batch.set()
            if self._watch is None:
                self._watch = Thread(target=self._give_back_late, name="dispatcher-batch", daemon=True)
                self._watch.start()
        if waiter.reports:
            self._report(waiter.reports)
        while (run := self._next()) is not None:
            run.end = self._run(run)
            if run.is_plain:
                self.place.add(run.ended)
            self.place.run(None)
            self.trips.done += 1
            self.trips.ends.add(run)
            if isinstance(run.end, Ending) and run.end.is_stop:
                self._put_back(self._take_waiting())

    def _report(self, reports: Sequence[Callable[[], object]]) -> None:
        """Call the receivers of ends, which may take long, by the connection of tasks."""
        began = self._began_at = monotonic()
        self.is_reporting = True
        try:
            for each in reports:
                sql.after_commit(each)
        finally:
            self._began_at, self.is_reporting = inf, False
            self._reported_s = monotonic() - began

    def _next(self) -> Run | None:
        with self._lock:
            run = self._waiting.pop() if self._waiting else None
            if not self._waiting:
                self._has_batch.clear()
            return run

    def _take_waiting(self) -> list[Run]:
        with self._lock:
            waiting, self._waiting = self._waiting, []
            return waiting

    def _put_back(self, runs: Sequence[Run]) -> None:
        """Have the next trip put back what has not begun."""
        for run in runs:
            run.end = Refused.MISSED
            self.trips.ends.add(run)

    def _run(self, run: Run) -> call.End:
        options = self.options
        try:
            run_limits = call.limits_of(self.app, run, soft=options.soft, hard=options.hard)
        except KeyError as error:
            return run.failed(error)
        self.place.run(run_limits)
        if run.start.is_paced:
            self._paced_until = monotonic() + _PACED_S
        began = self._began_at = run_limits.began
        try:
            with self.one_by_one or nullcontext(), self._limited_greenlet(run_limits.hard - began):
                self.in_task = True
                events = self.shared.events if self.shared.sends_events else None
                return call.execute(self.app, run, options.hostname, events)
        except (TimeLimitExceeded, SoftTimeLimitExceeded) as limit:
            # The soft one came when the task had ended.
            return run.end or self._cut_off(run, limit)
        except ProcessEnds:
            # The main process records the end.
            raise
        except BaseException as error:  # noqa: BLE001 -- a task may raise anything: an end of its attempt, not of the loop
            return run.end or self._cut_off(run, self._interruption or WorkerLost(f"the task ended with {error!r}"))
        finally:
            self.in_task, self._began_at, self._interruption = False, inf, None
            if options.is_forked and self.place.is_condemned:
                os._exit(_TERMINATED)
            took = min(max(monotonic() - began, 0.0001), 1.0)
            self._mean_s += _WEIGHT * (took - self._mean_s)

    def _cut_off(self, run: Run, error: BaseException) -> Ending:
        """Return the end of an attempt that the tracer has not ended, and report it as Celery does."""
        started, task = run.start, self.app.tasks[run.start.call.task]
        sender = self.shared.sender(task, started.call.id)
        facts: Any = {"attempt": started.attempt, "hostname": self.options.hostname, "send_event": sender}
        self._has_result_due = True
        if isinstance(error, Terminated):
            failures.revoke_soon(task, started.call.id, error, **facts)
            return ending.terminated(error, attempt=started.attempt)
        end = run.failed(error)
        failures.report(self.app, started.call, error, is_last=end.state is State.DISCARDED, **facts)
        return end

    @contextmanager
    def _limited_greenlet(self, seconds: float) -> Iterator[None]:
        """Let a task be ended that runs in a greenlet: no signal reaches that. Raises TimeLimitExceeded."""
        gevent = sys.modules.get("gevent")
        if gevent is None or not gevent.monkey.is_module_patched("threading"):
            yield
            return
        timeout = gevent.Timeout(None if seconds == inf else seconds)
        timeout.start()
        self._greenlet = gevent.getcurrent()
        try:
            yield
        except gevent.Timeout as raised:
            if raised is not timeout:
                raise
            raise TimeLimitExceeded(seconds) from None
        finally:
            self._greenlet = None
            timeout.close()

    def interrupt(self, error: BaseException) -> bool:
        """End the task that runs, for this reason, if it runs in a greenlet of gevent; return whether it does."""
        greenlet = self._greenlet
        if greenlet is not None:
            self._interruption = error
            sys.modules["gevent"].kill(greenlet)
        return greenlet is not None

    def _give_back_late(self) -> None:
        """Give back what waits in a batch behind a run or a receiver that takes long, in a thread."""
        warned_at = 0.0
        while self._has_batch.wait() and not self.has_left:
            sleep(_LATE_S / 2)
            began = self._began_at
            if monotonic() - began < _LATE_S:
                continue
            if self.is_reporting and monotonic() - began > _HANGS_S and began != warned_at:
                warned_at = began
                logger.warning("a receiver of call_finished takes longer than %g s; its process waits", _HANGS_S)
            if late := self._take_waiting():
                self._mean_s = 1.0
                self._give_back(late)
        connections.close_all()

    def _give_back(self, late: Sequence[Run]) -> None:
        try:
            direct.give_back([run.handle for run in late])
        except sql.DATABASE_ERRORS as fault:
            logger.warning("%d calls go back with the next trip: %s", len(late), fault)
            self._put_back(late)
        finally:
            connections.close_all()


_loops: Final[dict[int, Loop]] = {}
"""Those of this process, by the indexes of their places."""
_lock: Final = Lock()
"""Held while the first loop makes what all of the process share: threads begin at once."""


def _trips_of(options: Options, shared: Shared) -> Trips:
    with _lock:
        trips = Trips.current
        if trips is None or (trips.pid, trips.worker) != (os.getpid(), options.worker):
            trips = Trips.current = Trips(options.worker, options.tasks, shared)
        return trips


def main(index: int, options: Options) -> None:
    """Run a loop until it is asked to leave: the job of a pool's process, thread or greenlet."""
    shared = Shared.current
    assert shared is not None  # noqa: S101 -- the main process has made it before it forked
    if shared.place(index).is_condemned:
        return
    trips = _trips_of(options, shared)
    loop = _loops[index] = Loop(current_app._get_current_object(), index, trips, shared, options)  # noqa: SLF001
    with _signals(loop) if options.is_forked else nullcontext():
        try:
            _run(loop, index)
        except Exception:
            logger.exception("a loop of worker %s failed; another one begins in %g s", options.hostname, _FAILED_S)
            # Meanwhile the ends that it had are recorded; the keeper gives back what it has not begun.
            sleep(_FAILED_S)
            loop.place.hold([])
            loop.place.end_trip(is_lost=True)
        finally:
            loop.place.leave()
    loop.end()
    if options.is_forked and loop.trips.is_over:
        # Celery, when it stops, forgets jobs that it has not seen begin, and reads no results of theirs.
        pool.GUARANTEE_MESSAGE_CONSUMPTION_RETRY_LIMIT = _LAST_READS
    if loop.is_terminated or loop.is_spent or (options.is_forked and shared.is_orphan):
        # Celery's pool, if there is one, replaces it.
        sys.exit(_RECYCLE)


def _run(loop: Loop, index: int) -> None:
    try:
        loop.run()
    finally:
        del _loops[index]
        if _loops:
            # Another one records its ends.
            loop.trips.session.interrupt()
        else:
            loop.finish()


def interrupt(index: int, error: BaseException) -> bool:
    """End the task of a loop of this process, for this reason, if it runs in a greenlet; return whether it does."""
    found = _loops.get(index)
    return found is not None and found.interrupt(error)


@contextmanager
def _signals(loop: Loop) -> Iterator[None]:
    """Handle the signals of a process of its own."""

    def on_soft_limit(*_: Any) -> None:
        if loop.in_task:
            raise SoftTimeLimitExceeded

    def on_terminate(*_: Any) -> None:
        """Let the task clean up, and end, if the main process asks for it; sent to the whole group, leave after it."""
        if loop.place.is_condemned:
            if not loop.in_task:
                os._exit(_TERMINATED)
            loop.in_task = False
            raise ProcessEnds(_TERMINATED)
        loop.is_terminated = True
        loop.trips.leave()

    handlers = {signal.SIGUSR1: on_soft_limit, signal.SIGTERM: on_terminate}
    former = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
