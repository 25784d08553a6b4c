"""The keeper, a thread of the worker's main process: it keeps the loops that run calls in the pool.

It submits a loop to each process of the pool, has loops leave while messages of the broker wait, and watches what each
loop writes into shared memory: time limits, deaths, and trips whose answers were lost.
"""

import logging
import os
import select
import signal
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Lock, Thread
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.worker import WorkController, state

from dispatcher import engine, sql
from dispatcher.celery import heartbeat, revoke
from dispatcher.conf import conf
from dispatcher.engine import direct, ends, workers
from dispatcher.errors import WorkerLost
from dispatcher.lifecycle import wake
from dispatcher.lifecycle.finish import Ended
from dispatcher.worker import loop
from dispatcher.worker.loop import Loop, Options
from dispatcher.worker.shared import PLACES, Running, Shared

if TYPE_CHECKING:
    from celery.worker.consumer import Consumer  # see dispatcher.celery.unknown

logger = logging.getLogger(__name__)

_READ: Final = 4096
_LOOK_S: Final = 0.1
_BEGIN_S: Final = 10.0
"""How long a process takes at the most to begin its loop; then the loop is submitted again."""
_SESSION_S: Final = 10.0
"""How long it waits until the session of a dead process is over."""
_NAP_S: Final = 0.02
_UNLIMITED_S: Final = 1e9
"""The time limit of the loops themselves."""
_LAST_S: Final = 5.0
_QUEUES_S: Final = 5.0
"""How often it looks which of the worker's queues are direct, and at their weights; at least once a heartbeat."""


@dataclass(eq=False)
class Seat:
    """A loop that was submitted to the pool."""

    index: int
    submitted_at: float
    pid: int = 0
    ran_at: float = 0.0
    """When a call was seen to run, or the worker's shutdown began."""
    warned: UUID | None = None
    """The ticket of the call whose soft time limit was signalled."""
    reason: tuple[UUID, BaseException] | None = None
    """The ticket of the call for which the main process ends the process, and why."""


class Keeper:
    """Keeps the loops of one worker."""

    def __init__(self, consumer: "Consumer", shared: Shared, options: Options) -> None:
        """Submit nothing yet."""
        self.shared, self.options = shared, options
        self._seats: dict[int, Seat] = {}
        self._to_submit: list[Seat] = []
        self._unsettled: dict[UUID, set[UUID]] = {}
        """The tickets of each dead process until they are dealt with: nothing else may give their calls back."""
        self._lock = Lock()
        self._given_up: set[int] = set()
        """The places of loops that did not begin in time."""
        self._pidfds: dict[int, int] = {}
        """The descriptors of the pool's processes that have had a loop, by their pids."""
        self._asked = 0
        """How many loops were asked to leave."""
        self._queues_at = 0.0
        self._queues: list[str] = []
        """Those that were looked up last."""
        self.is_closing = False
        self._read, self._write = os.pipe()
        self._submit_read, self._submit_write = os.pipe()
        for descriptor in (self._read, self._write, self._submit_read, self._submit_write):
            os.set_blocking(descriptor, False)
        self._thread: Thread | None = None
        if options.is_forked:
            self._let_shrink(consumer.pool._pool)  # noqa: SLF001 -- Celery has no other place for it
        self.attach(consumer)

    def attach(self, consumer: "Consumer") -> None:
        """Use this consumer: Celery makes another one when its connection to the broker was lost."""
        self.consumer = consumer
        self._hub: Any = getattr(consumer, "hub", None) if self.options.is_forked else None
        if self._hub is not None:
            self._hub.add_reader(self._submit_read, self._submit)
        if self._thread is None:
            self._thread = Thread(target=self._run, name="dispatcher-keeper", daemon=True)
            self._thread.start()
        self.wake()

    def wake(self, **_: Any) -> None:
        """Look at once, in any thread."""
        with suppress(BlockingIOError):
            os.write(self._write, b"x")

    def close(self, **_: Any) -> None:
        """Have all loops leave after their calls."""
        if not self.is_closing:
            for seat in [*self._seats.values()]:
                seat.ran_at = monotonic()
        self.is_closing = True
        self.shared.close()
        self.wake()

    def condemn(self) -> None:
        """End the processes of loops at once, whatever they run: the worker's shutdown is cold."""
        self.close()
        for index, seat in [*self._seats.items()]:
            place = self.shared.place(index)
            running, error = place.running, WorkerLost("its worker was shut down")
            if running is not None and seat.reason is None:
                seat.reason = running.ticket, error
                if self.options.is_forked:
                    self._end(seat, signal.SIGTERM)
                else:
                    loop.interrupt(index, error)

    def finish(self) -> None:
        """Wait a bounded time until all loops have left that share this process."""
        if not self.options.is_forked:
            self.wait(monotonic() + _LAST_S)

    def wait(self, until: float) -> None:
        """Wait until all loops have left, or until a monotonic time."""
        while self._seats and monotonic() < until:
            sleep(_NAP_S)

    # What people ask

    def held(self) -> list[tuple[UUID, UUID]]:
        """Return the calls that loops have, with their tickets."""
        return [call for index in [*self._seats] for call in self.shared.place(index).held]

    def running(self) -> list[tuple[Running, int]]:
        """Return the calls that run now, each with the pid of its process."""
        places = [self.shared.place(index) for index in [*self._seats]]
        found = [(place.running, place.pid) for place in places]
        return [(running, pid) for running, pid in found if running is not None]

    def terminate(self, call: UUID, number: int) -> str | None:
        """End the attempt that runs of this call, with its process or greenlet; return what forbids it, if a loop does.

        number: the signal that ends a process.
        """
        for seat in [*self._seats.values()]:
            running = self.shared.place(seat.index).running
            if running is not None and running.call == call:
                error = Terminated(number)
                if self.options.is_forked:
                    seat.reason = running.ticket, error
                    self._end(seat, number)
                elif not loop.interrupt(seat.index, error):
                    kind = self.consumer.controller.pool_cls.__module__.rsplit(".", 1)[-1]
                    return f"a pool of {kind} can't terminate call {call}: its attempt runs to its end"
        return None

    # The thread

    def _run(self) -> None:
        while self._seats or not self.is_closing:
            try:
                self._send_events()
                self._look_up()
                self._balance()
                self._wait()
                self._look()
            except Exception:
                logger.exception("the keeper of worker %s failed, and goes on", self.options.hostname)
                sleep(_LOOK_S)

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        poll.register(self.shared.events.read, select.POLLIN)
        by_fd = {descriptor: pid for pid, descriptor in self._pidfds.items()}
        for descriptor in by_fd:
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(_LOOK_S * 1_000):
            if descriptor == self._read:
                with suppress(BlockingIOError):
                    os.read(self._read, _READ)
            elif descriptor in by_fd:
                self._note_exit(by_fd[descriptor])

    def _send_events(self) -> None:
        """Send the events of calls to monitors, where the worker sends events."""
        dispatcher = self.consumer.event_dispatcher
        self.shared.sends_events = bool(dispatcher is not None and dispatcher.enabled)
        for event in self.shared.events.lines():
            if dispatcher is not None:
                dispatcher.send(event.pop("kind"), **event)

    def _look_up(self) -> None:
        """Have the worker's direct queues looked up, once its first heartbeat is recorded; others at once."""
        now, queues = monotonic(), list(self.consumer.app.amqp.queues.consume_from)
        if heartbeat.has_direct() is None or (now < self._queues_at and queues == self._queues):
            return
        self._queues_at = now + min(_QUEUES_S, conf().heartbeat.total_seconds())
        self._queues = queues

        def look() -> None:
            found = workers.direct_queues(queues)
            if found != self.shared.queues:
                self.shared.write_queues(found)
                self.wake()

        heartbeat.in_background("look up its direct queues", look)

    # Loops and the pool

    def _let_shrink(self, pool: Any) -> None:
        """Let a pool end processes whose loops run no call: to Celery each process with a loop is busy."""
        is_active = pool._worker_active  # noqa: SLF001

        def is_busy(process: Any) -> bool:
            places = [self.shared.place(index) for index in [*self._seats]]
            running = [place.running is not None for place in places if place.pid == process.pid]
            return any(running) if running else is_active(process)

        pool._worker_active = is_busy  # noqa: SLF001

    def _size(self) -> int:
        pool = self.consumer.pool
        if self.options.is_forked:
            return int(pool.num_processes or 1)
        return int(getattr(pool, "limit", None) or self.consumer.controller.concurrency or 1)

    def _wanted(self) -> int:
        """Return how many loops there may be: the broker's messages get processes, but one, while calls are direct."""
        if self.is_closing or not self.shared.queues:
            return 0
        return max(self._size() - len(state.reserved_requests), 1)

    @property
    def _alternates(self) -> bool:
        """Whether messages wait for the last loop, too, which runs nothing: it leaves, and stands in line behind them.

        In a pool of one process also where it runs calls: it leaves after a trip.
        """
        size = self._size()
        if self._is_solo or len(state.reserved_requests) < size:
            return False
        return size == 1 or not self.running()

    @property
    def _is_solo(self) -> bool:
        return bool(self.consumer.pool.__module__.endswith("solo"))

    def _balance(self) -> None:
        wanted, now = self._wanted(), len(self._seats)
        surplus = now if wanted and self._alternates else now - wanted
        if self._asked and surplus <= 0:
            self._asked = 0
            self.shared.take_back()
        if now < wanted and not self._asked:
            with self._lock:
                for _ in range(wanted - now):
                    taken = self._given_up.union(self._seats)
                    index = next(index for index in range(PLACES) if index not in taken)
                    self.shared.place(index).clear()
                    seat = self._seats[index] = Seat(index, monotonic())
                    self._to_submit.append(seat)
            if self._hub is None:
                self._submit()
            else:
                # Not call_soon: what is to come in the hub's next turn is lost with a connection that breaks in this.
                with suppress(BlockingIOError):
                    os.write(self._submit_write, b"x")
        elif surplus > self._asked and not self.is_closing:
            self.shared.ask_to_leave(surplus - self._asked)
            self._asked = surplus
        scaler = self.consumer.controller.autoscaler
        if scaler is not None and now and self._size() < scaler.max_concurrency and len(self.running()) >= now:
            scaler.scale_up(1)

    def _submit(self, *_: Any) -> None:
        """Give the loops that wait for it to the pool; in the thread of its event loop, where there is one."""
        if self._hub is not None:
            with suppress(BlockingIOError):
                os.read(self._submit_read, _READ)
            if not self.is_closing:
                self.consumer.pool.maintain_pool()
        while self._to_submit:
            seat = self._to_submit.pop()
            over = partial(self._over, seat)
            if self._is_solo:
                Thread(target=self._run_alone, args=(seat,), name="dispatcher-loop", daemon=True).start()
                continue
            limits = (
                {"soft_timeout": _UNLIMITED_S, "timeout": _UNLIMITED_S} if self.options.is_forked else {"timeout": 0}
            )
            self.consumer.pool.apply_async(
                loop.main,
                (seat.index, self.options),
                callback=over,
                error_callback=over,
                correlation_id=None,
                **limits,
            )

    def _run_alone(self, seat: Seat) -> None:
        """Run a loop beside the consumer of a pool that runs tasks in the consumer's own thread, one at a time."""
        pool = self.consumer.pool
        if Loop.one_by_one is None:
            Loop.one_by_one, apply = Lock(), pool.on_apply

            def one_by_one(*args: Any, **kwargs: Any) -> Any:
                with Loop.one_by_one:
                    return apply(*args, **kwargs)

            pool.on_apply = one_by_one
        self.consumer.app.set_current()
        try:
            loop.main(seat.index, self.options)
        finally:
            self._over(seat)

    def _over(self, seat: Seat, *_: Any, **__: Any) -> None:
        """Forget a loop whose job has ended; the keeper's thread buries those that are gone."""
        self._given_up.discard(seat.index)
        if self.shared.place(seat.index).pid == 0:
            self._part(seat)
        self.wake()

    def _part(self, seat: Seat) -> None:
        """Forget a loop that has left in order, and record the ends that it could not."""
        unrecorded = self.shared.place(seat.index).ends
        self._forget(seat)
        if unrecorded:
            heartbeat.in_background(f"record what process {seat.pid} had left", partial(ends.record, unrecorded))

    def _forget(self, seat: Seat) -> None:
        with self._lock:
            if self._seats.get(seat.index) is seat:
                del self._seats[seat.index]

    # Time limits and deaths

    def _look(self) -> None:
        now = monotonic()
        for seat in [*self._seats.values()]:
            place = self.shared.place(seat.index)
            if place.take_lost():
                heartbeat.in_background("give back what lost answers had started", self._give_back_lost)
            if not self.options.is_forked:
                continue
            if seat.pid == 0:
                self._meet(seat, now)
            elif seat.pid not in self._pidfds:
                try:
                    os.kill(seat.pid, 0)
                except ProcessLookupError:
                    self._bury(seat)
                    continue
            running = place.running
            if running is not None:
                seat.ran_at = now
                self._limit(seat, running, now)
            elif self.is_closing and seat.ran_at and now - seat.ran_at > 2 * _LAST_S:
                # The database does not answer it.
                self._end(seat, signal.SIGKILL)

    def _meet(self, seat: Seat, now: float) -> None:
        seat.pid = self.shared.place(seat.index).pid
        if seat.pid == 0:
            if now - seat.submitted_at > _BEGIN_S:
                # Should it come after all, it ends at once, and in a place of its own.
                self.shared.place(seat.index).condemn()
                self._given_up.add(seat.index)
                self._forget(seat)
        elif hasattr(os, "pidfd_open") and seat.pid not in self._pidfds:
            try:
                self._pidfds[seat.pid] = os.pidfd_open(seat.pid)
            except ProcessLookupError:
                self._bury(seat)

    def _note_exit(self, pid: int) -> None:
        """Bury what a process had, and have the pool replace it: it looks by itself every 5 s."""
        os.close(self._pidfds.pop(pid))
        for seat in [*self._seats.values()]:
            if seat.pid == pid:
                self._bury(seat)
        if self._hub is not None:
            with suppress(BlockingIOError):
                os.write(self._submit_write, b"x")

    def _limit(self, seat: Seat, running: Running, now: float) -> None:
        name = f"{running.task}[{running.call}]"
        if now > running.hard and seat.reason is None:
            limit = running.hard - running.began
            seat.reason = running.ticket, TimeLimitExceeded(limit)
            logger.error("Hard time limit (%ss) exceeded for %s", f"{limit:g}", name)
            self._end(seat, signal.SIGKILL)
        elif now > running.soft and seat.warned != running.ticket:
            seat.warned = running.ticket
            logger.warning("Soft time limit (%ss) exceeded for %s", f"{running.soft - running.began:g}", name)
            with suppress(ProcessLookupError):
                os.kill(seat.pid, signal.SIGUSR1)

    def _end(self, seat: Seat, number: int) -> None:
        """End a process that runs a call, by a signal."""
        place = self.shared.place(seat.index)
        place.condemn()
        # 0 would be this process with all others of its group.
        if pid := place.pid:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _bury(self, seat: Seat) -> None:
        """Have what a dead process had recorded, or given back."""
        place = self.shared.place(seat.index)
        process, running, held, unrecorded = place.process, place.running, place.held, place.ends
        if process is None:
            self._part(seat)
            return
        self._unsettled[process] = {each[1] for each in held} | {each.ticket for each in unrecorded}
        self._forget(seat)
        error: BaseException = WorkerLostError(f"process {seat.pid} of the pool has ended")
        if seat.reason is not None and running is not None and running.ticket == seat.reason[0]:
            error = seat.reason[1]
        if running is not None:
            logger.error("%s: call %s[%s] was running", repr(error), running.task, running.call)
        if isinstance(error, TimeLimitExceeded) and running is not None:
            self._fail_result(running, error)
        heartbeat.in_background(
            f"record what process {seat.pid} had",
            partial(self._settle, process, running, held, unrecorded, error),
        )

    def _fail_result(self, running: Running, error: BaseException) -> None:
        task = self.consumer.app.tasks.get(running.task)
        if task is not None and not task.ignore_result:
            with suppress(Exception):
                task.backend.mark_as_failure(str(running.call), error)

    def _settle(
        self,
        process: UUID,
        running: Running | None,
        held: list[tuple[UUID, UUID]],
        unrecorded: list[Ended],
        error: BaseException,
    ) -> None:
        self._wait_for_session(process)
        if unrecorded:
            ends.record(unrecorded)
        if running is not None and all(each.ticket != running.ticket for each in unrecorded):
            is_crash = isinstance(error, WorkerLostError)
            engine.lose(running.call, running.ticket, error, is_crash=is_crash, claim_id=running.ticket)
            if isinstance(error, Terminated):
                revoke.cancel_if_revoked(running.call)
        over = {each.ticket for each in unrecorded} | ({running.ticket} if running is not None else set())
        direct.give_back([each for each in held if each[1] not in over])
        wake.delete([process])
        self._unsettled.pop(process, None)
        self._give_back_lost()

    def _wait_for_session(self, process: UUID) -> None:
        """Wait until nothing that a dead process has sent can commit any more."""
        until = monotonic() + _SESSION_S
        while not sql.fetch("session_is_over", bool, {"process": process})[0] and monotonic() < until:
            sleep(_NAP_S)

    def _give_back_lost(self) -> None:
        """Give back what trips have started that no loop has: their answers were lost."""
        started = direct.started(self.options.worker)
        known = self.shared.known([*self._seats], patience_s=1.0) if started else set()
        if known is None:
            heartbeat.in_background("give back what lost answers had started", self._give_back_lost)
            return
        # After those that loops have: a process that dies meanwhile is among these by now.
        known = known.union(*self._unsettled.copy().values())
        lost = [each for each in started if each[1] not in known]
        if lost:
            logger.warning("worker %s gives %d calls back: no process has them", self.options.hostname, len(lost))
            direct.give_back(lost)


def keeper_of(controller: WorkController) -> Keeper | None:
    """Return the keeper of a worker, if it has one by now."""
    return getattr(controller, "dispatcher_keeper", None)
