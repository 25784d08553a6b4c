"""The keeper, a thread of the worker's main process: it keeps the loops that run calls in the pool.

It submits a loop to each process of the pool, has loops leave while messages of the broker wait, and watches what each
loop writes into shared memory: time limits, deaths, and trips whose answers were lost.
"""

import logging
import os
import select
import signal
from functools import partial
from threading import Lock, Thread
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from billiard.exceptions import Terminated
from celery.worker import WorkController, state
from django.db import connections

from dispatcher.celery import heartbeat
from dispatcher.conf import conf
from dispatcher.engine import workers
from dispatcher.errors import WorkerLost
from dispatcher.worker import loop
from dispatcher.worker.deaths import Deaths
from dispatcher.worker.events import are_wanted
from dispatcher.worker.loop import Options
from dispatcher.worker.pool import Pool, Seat
from dispatcher.worker.publisher import Publisher
from dispatcher.worker.shared import PLACES, Place, Running, Shared, WakePipe

if TYPE_CHECKING:
    from celery.worker.consumer import Consumer  # see dispatcher.celery.fence

logger = logging.getLogger(__name__)

_LOOK_S: Final = 0.1
"""How often it looks while calls run: so late are time limits at the most."""
_IDLE_LOOK_S: Final = 0.3
"""How often while none runs: so late are limits that are shorter than that."""
_BEGIN_S: Final = 10.0
"""How long a process takes at the most to begin its loop; then the loop is submitted again."""
_NAP_S: Final = 0.02
_LAST_S: Final = 5.0
_QUEUES_S: Final = 5.0
"""How often it looks which of the worker's queues are direct, and at their weights; at least once a heartbeat."""


class Keeper:
    """Keeps the loops of one worker."""

    def __init__(self, consumer: "Consumer", shared: Shared, options: Options) -> None:
        """Submit nothing yet."""
        self.shared, self.options = shared, options
        self._seats: dict[int, Seat] = {}
        self.pool = Pool(options, self._over)
        self._deaths = Deaths(shared, options, lambda: self._places)
        self._lock = Lock()
        self._given_up: set[int] = set()
        """The places of loops that did not begin in time."""
        self._pidfds: dict[int, int] = {}
        """The descriptors of the pool's processes that have had a loop, by their pids."""
        self._asked = 0
        """How many loops were asked to leave."""
        self._to_terminate: dict[UUID, tuple[int, set[tuple[int, int]]]] = {}
        """The calls that are to be terminated as they begin: with the signals, and with the trips under way that may
        have started them, each by its place and number."""
        self._queues_at = 0.0
        self._queues: list[str] = []
        """Those that were looked up last."""
        self.is_closing = False
        self._wakes = WakePipe()
        self._thread: Thread | None = None
        self.publisher = Publisher(options.worker)
        self.attach(consumer)
        if options.is_forked:
            self.pool.let_shrink(self._is_running)

    def attach(self, consumer: "Consumer") -> None:
        """Use this consumer: Celery makes another one when its connection to the broker was lost."""
        self.consumer = consumer
        self.pool.attach(consumer)
        if self._thread is None:
            self._thread = Thread(target=self._run, name="dispatcher-keeper", daemon=True)
            self._thread.start()
            self.publisher.start()
            send = partial(self.shared.events.pass_on, lambda: self.consumer.event_dispatcher)
            Thread(target=send, name="dispatcher-events", daemon=True).start()
        self.wake()

    def wake(self, **_: Any) -> None:
        """Look at once, in any thread."""
        self._wakes.wake()

    def close(self, **_: Any) -> None:
        """Have all loops leave after their calls."""
        if not self.is_closing:
            for seat in [*self._seats.values()]:
                seat.ran_at = monotonic()
        self.is_closing = self.pool.is_closing = True
        self.shared.close()
        self.publisher.close()
        self.wake()

    def condemn(self) -> None:
        """End the processes of loops at once, whatever they run: the worker's shutdown is cold."""
        self.close()
        for index, seat in [*self._seats.items()]:
            running, error = seat.place.running, WorkerLost("its worker was shut down")
            if running is not None and seat.reason is None:
                seat.reason = running.ticket, error
                if self.options.is_forked:
                    seat.end(signal.SIGTERM)
                else:
                    loop.interrupt(index, error)

    def finish(self) -> None:
        """Wait a bounded time until all loops have left that share this process, and the thread has ended."""
        if not self.options.is_forked:
            until = monotonic() + _LAST_S
            self.wait(until)
            self.wake()
            if self._thread is not None:
                self._thread.join(max(0.0, until - monotonic()))
            self.publisher.join()

    def wait(self, until: float) -> None:
        """Wait until all loops have left, or until a monotonic time."""
        while self._seats and monotonic() < until:
            sleep(_NAP_S)

    @property
    def _places(self) -> list[Place]:
        return [seat.place for seat in [*self._seats.values()]]

    # What people ask

    def held(self) -> list[tuple[UUID, UUID]]:
        """Return the calls that loops have, with their tickets."""
        return [call for place in self._places for call in place.held]

    def running(self) -> list[tuple[Running, int]]:
        """Return the calls that run now, each with the pid of its process."""
        found = [(place.running, place.pid) for place in self._places]
        return [(running, pid) for running, pid in found if running is not None]

    def terminate(self, call: UUID, number: int) -> str | None:
        """End the attempt that runs of this call, with its process or greenlet; return what forbids it, if a loop does.

        number: the signal that ends a process.
        """
        for seat in [*self._seats.values()]:
            place, running = seat.place, seat.place.running
            if running is not None and running.call == call:
                self._to_terminate.pop(call, None)
                error = Terminated(number)
                if self.options.is_forked:
                    seat.reason = running.ticket, error
                    seat.end(number)
                elif not loop.interrupt(place.index, error):
                    return f"a pool of {self.pool.kind} can't terminate call {call}: its attempt runs to its end"
        return None

    def terminate_started(self, call: UUID, number: int) -> None:
        """Terminate a call that a loop has, or has by a trip under way: it was revoked, so that no other starts it."""
        trips = {(place.index, place.trips) for place in self._places}
        self._to_terminate[call] = number, {(index, ended) for index, (ended, is_in_trip) in trips if is_in_trip}
        self.wake()

    # The thread

    def _run(self) -> None:
        while self._seats or not self.is_closing:
            try:
                self.shared.sends_events = are_wanted(self.consumer.event_dispatcher)
                self._look_up()
                self._balance()
                self._wait()
                self.look()
            except Exception:
                logger.exception("the keeper of worker %s failed, and goes on", self.options.hostname)
                sleep(_LOOK_S)
        self.shared.events.end()
        connections.close_all()

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._wakes.descriptor, select.POLLIN)
        by_fd = {descriptor: pid for pid, descriptor in self._pidfds.items()}
        for descriptor in by_fd:
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll((_LOOK_S if self.running() else _IDLE_LOOK_S) * 1_000):
            if descriptor == self._wakes.descriptor:
                self._wakes.clear()
            elif descriptor in by_fd:
                self._note_exit(by_fd[descriptor])

    def _look_up(self) -> None:
        """Have the worker's direct queues looked up, once its first heartbeat is recorded; others at once."""
        now, queues = monotonic(), list(self.consumer.app.amqp.queues.consume_from)
        if heartbeat.Identity.has_direct is None or (now < self._queues_at and queues == self._queues):
            return
        self._queues_at = now + min(_QUEUES_S, conf().heartbeat.total_seconds())
        self._queues = queues

        def look() -> None:
            found = workers.direct_queues(queues)
            if not self.is_closing:
                self.publisher.serve(workers.published_queues(queues))
            if found != self.shared.queues:
                self.shared.write_queues(found)
                self.wake()

        heartbeat.in_background("look up its direct queues", look)

    # Loops and the pool

    def _is_running(self, pid: int) -> bool | None:
        """Return whether the loop of a process runs a call; None if it has none."""
        running = [place.running is not None for place in self._places if place.pid == pid]
        return any(running) if running else None

    def _wanted(self) -> int:
        """Return how many loops there may be: the broker's messages get processes, but one, while calls are direct."""
        if self.is_closing or not self.shared.queues:
            return 0
        return min(max(self.pool.size - len(state.reserved_requests), 1), PLACES - len(self._given_up))

    @property
    def alternates(self) -> bool:
        """Whether messages wait for the last loop, too, which has nothing: it leaves, and stands in line behind them.

        One that makes a trip may have calls by then. In a pool of one process also where it has some: it leaves after
        a trip.
        """
        size = self.pool.size
        if self.pool.is_solo or len(state.reserved_requests) < size:
            return False
        return size == 1 or not (self.held() or any(place.trips[1] for place in self._places))

    def _new_seat(self) -> Seat:
        with self._lock:
            taken = self._given_up.union(self._seats)
            index = next(index for index in range(PLACES) if index not in taken)
            place = self.shared.place(index)
            place.clear()
            seat = self._seats[index] = Seat(place, monotonic())
            return seat

    def _balance(self) -> None:
        wanted, now = self._wanted(), len(self._seats)
        surplus = now if wanted and self.alternates else now - wanted
        if self._asked and surplus <= 0:
            self._asked = 0
            self.shared.take_back()
        if now < wanted and not self._asked:
            self.pool.submit(*(self._new_seat() for _ in range(wanted - now)))
        elif surplus > self._asked and not self.is_closing:
            self.shared.ask_to_leave(surplus - self._asked)
            self._asked = surplus
        scaler = self.consumer.controller.autoscaler
        if scaler is not None and now and self.pool.size < scaler.max_concurrency and len(self.running()) >= now:
            scaler.scale_up(1)

    def _over(self, seat: Seat) -> None:
        """Forget a loop whose job has ended; the keeper's thread buries those that are gone."""
        self._given_up.discard(seat.place.index)
        if seat.place.pid == 0:
            self._part(seat)
        self.wake()

    def _part(self, seat: Seat) -> None:
        """Forget a loop that has left, record the ends that it could not, and give back what a failed one had."""
        self._deaths.record(seat)
        self._forget(seat)
        if seat.place.take_lost():
            self._deaths.give_back_lost()

    def _forget(self, seat: Seat) -> None:
        with self._lock:
            if self._seats.get(seat.place.index) is seat:
                del self._seats[seat.place.index]

    # Time limits and deaths

    def look(self) -> None:
        """Deal with what its loops have written into shared memory since the latest look."""
        self._terminate_again()
        now = monotonic()
        for seat in [*self._seats.values()]:
            if seat.place.take_lost():
                self._deaths.give_back_lost()
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
            if (running := seat.place.running) is not None:
                seat.ran_at = now
                seat.limit(running, now)
            elif self.is_closing and seat.ran_at and now - seat.ran_at > 2 * _LAST_S:
                # The database does not answer it.
                seat.end(signal.SIGKILL)

    def _terminate_again(self) -> None:
        for call, (number, trips) in [*self._to_terminate.items()]:
            left = {each for each in trips if self.shared.place(each[0]).trips == (each[1], True)}
            if left or any(held == call for held, _ in self.held()):
                self._to_terminate[call] = number, left
            else:
                self._to_terminate.pop(call, None)
            if (refusal := self.terminate(call, number)) is not None:
                logger.warning(refusal)

    def _meet(self, seat: Seat, now: float) -> None:
        seat.pid = seat.place.pid
        if seat.pid == 0:
            if now - seat.submitted_at > _BEGIN_S:
                # Should it come after all, it ends at once, and in a place of its own.
                seat.place.condemn()
                self._given_up.add(seat.place.index)
                self._forget(seat)
            return
        self.pool.end_again(seat.pid)
        if hasattr(os, "pidfd_open") and seat.pid not in self._pidfds:
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
        self.pool.submit()

    def _bury(self, seat: Seat) -> None:
        """Have what a dead process had recorded, or given back."""
        if (process := seat.place.process) is None:
            self._part(seat)
        else:
            self._deaths.settle(self.consumer.app, seat, process)
            self._forget(seat)


def keeper_of(controller: WorkController) -> Keeper | None:
    """Return the keeper of a worker, if it has one by now."""
    return getattr(controller, "dispatcher_keeper", None)
