"""The loops of a worker's process in threads: the trips are real, and calls run until the test ends them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Thread
from typing import Any
from uuid import UUID

from django.db import connections

from dispatcher import ending
from dispatcher.worker import call
from dispatcher.worker.call import Run
from dispatcher.worker.shared import Shared
from dispatcher.worker.trips import Trips, Waiter
from tests.builders import HERE
from tests.races.lockstep import DEADLINE


class Process:
    """One of the worker `HERE`, that knows the task `noop`, with so many loops, each with room for so many calls."""

    def __init__(self, queues: Sequence[str], loops: int, *, room: int, is_quick: bool) -> None:
        self.room, self.is_quick = room, is_quick
        self.shared = Shared()
        self.shared.write_queues(dict.fromkeys(queues, 1))
        self.trips = Trips(HERE.id, ["noop"], self.shared)
        self.places = [self.shared.place(index) for index in range(loops)]
        self._begun: SimpleQueue[Run] = SimpleQueue()
        self._ended: SimpleQueue[Run] = SimpleQueue()
        self._runs: list[Run] = []
        self._threads = [Thread(target=self._loop, args=[place], daemon=True) for place in self.places]

    def begun(self) -> UUID:
        """Wait until another call runs, and return it."""
        return self.next_run().start.call.id

    def next_run(self) -> Run:
        """Wait until another call runs, and return its run."""
        self._runs.append(self._begun.get(timeout=DEADLINE))
        return self._runs[-1]

    def end(self, result: Any = None, *, by: call.End | None = None) -> None:
        """End the call that has run for longest."""
        run = self._runs.pop(0)
        run.end = ending.completed(result) if by is None else by
        self._ended.put(run)

    def _loop(self, place: Any) -> None:
        place.enter(self.trips.session.process)
        try:
            goes_on = True
            while goes_on:
                waiter = Waiter(place=place, room=self.room)
                goes_on = self.trips.next(waiter)
                for each in waiter.reports:
                    each()
                for run in waiter.runs:
                    self._run(run)
        finally:
            connections.close_all()

    def _run(self, run: Run) -> None:
        if self.is_quick:
            run.end = ending.completed(None)
            self.trips.ends.add(run)
        else:
            self._begun.put(run)
            self.trips.ends.add(self._ended.get(timeout=DEADLINE))

    def start(self) -> None:
        """Let its loops begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End what runs, and let the loops leave."""
        self.trips.leave()
        while not self._begun.empty():
            self.begun()
        while self._runs:
            self.end()
        for thread in self._threads:
            thread.join(DEADLINE)
            assert not thread.is_alive()
        self.trips.finish(Waiter(place=self.places[0], room=0))
        self.shared.close()


@contextmanager
def process(*queues: str, loops: int = 1, room: int = 1, is_quick: bool = False) -> Iterator[Process]:
    """Give a process whose loops run, of these queues. room: of each loop; is_quick: calls end at once."""
    made = Process(queues or ["mail"], loops, room=room, is_quick=is_quick)
    made.start()
    try:
        yield made
    finally:
        made.stop()
