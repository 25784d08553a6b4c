"""Shared memory between a worker's main process and its loops: one place for each loop, written by the loop.

It is made before the pool forks. In pools of threads and greenlets the loops are in the main process itself.
"""

import json
import mmap
import os
import pickle
import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from time import monotonic, sleep
from typing import Any, ClassVar, Final
from uuid import UUID

from celery import Task

from dispatcher.lifecycle.finish import Ended
from dispatcher.worker.events import EventPipe

PLACES: Final = 1024
_QUEUES: Final = 65_536
"""Bytes for the queues."""
_SIZE: Final = 16_384
"""Bytes of a place; pages that are not written take no memory."""
_COUNT: Final = struct.Struct("@Q")
"""Native, so it is written as a whole."""
_WHO: Final = struct.Struct("<16si")
"""The process's id, and its pid."""
_RUN: Final = struct.Struct("<16s16siddd100p")
"""The call that runs, its ticket, the attempt, when it began, its soft and its hard limit (monotonic), the task."""
_TRIPS_AT: Final = 0
"""Counts the beginnings and the ends of trips: it is odd while one is under way."""
_WHO_AT: Final = _TRIPS_AT + _COUNT.size
_LOST_AT: Final = _WHO_AT + _WHO.size
"""Whether the answer of a trip was lost."""
_CONDEMNED_AT: Final = _LOST_AT + 1
_RUN_AT: Final = _CONDEMNED_AT + 1
_TICKET_AT: Final = _RUN_AT + 16
_HELD_AT: Final = _RUN_AT + _RUN.size
_MOST_HELD: Final = 64
_ENDS_AT: Final = _HELD_AT + _COUNT.size + 32 * _MOST_HELD
_NONE: Final = bytes(16)
_NAP_S: Final = 0.002
_READ: Final = 4096


def _text(memory: memoryview, at: int) -> bytes:
    """Return a text that lies behind its length."""
    (length,) = _COUNT.unpack_from(memory, at)
    return bytes(memory[at + _COUNT.size : at + _COUNT.size + length])


def _write(memory: memoryview, at: int, text: bytes, *, behind: int = 0) -> None:
    """Write a text behind so many bytes of the one that is there; while it is written, there are only these."""
    _COUNT.pack_into(memory, at, behind)
    start = at + _COUNT.size + behind
    memory[start : start + len(text)] = text
    _COUNT.pack_into(memory, at, behind + len(text))


@dataclass(frozen=True, kw_only=True)
class Running:
    """The call that a loop runs; times are monotonic, limits infinite where there are none."""

    call: UUID
    ticket: UUID
    task: str
    attempt: int
    began: float
    soft: float
    hard: float


class Place:
    """What one loop lets the main process know."""

    def __init__(self, memory: memoryview, index: int) -> None:
        """Name the place; nothing is written."""
        at = _QUEUES + index * _SIZE
        self._memory, self.index = memory[at : at + _SIZE], index

    def clear(self) -> None:
        """Make it ready for a loop that is about to start."""
        size = _ENDS_AT + _COUNT.size
        self._memory[:size] = bytes(size)

    # Of the process

    def enter(self, process: UUID) -> None:
        """Note that this process has the place."""
        _WHO.pack_into(self._memory, _WHO_AT, process.bytes, os.getpid())

    def leave(self) -> None:
        """Note that the loop has ended in order: it holds nothing."""
        _COUNT.pack_into(self._memory, _TRIPS_AT, 0)
        _WHO.pack_into(self._memory, _WHO_AT, _NONE, 0)

    def begin_trip(self) -> None:
        """Note that a trip is under way, which may start calls that are not noted here yet."""
        (count,) = _COUNT.unpack_from(self._memory, _TRIPS_AT)
        _COUNT.pack_into(self._memory, _TRIPS_AT, count | 1)

    def end_trip(self, *, is_lost: bool = False) -> None:
        """Note that what the trip has started is noted. is_lost: its answer is not known."""
        if is_lost:
            self._memory[_LOST_AT] = True
        (count,) = _COUNT.unpack_from(self._memory, _TRIPS_AT)
        _COUNT.pack_into(self._memory, _TRIPS_AT, (count | 1) + 1)

    @property
    def process(self) -> UUID | None:
        """The id of the process that has the place; None: no loop runs here."""
        found, _ = _WHO.unpack_from(self._memory, _WHO_AT)
        return None if found == _NONE else UUID(bytes=found)

    @property
    def pid(self) -> int:
        """The process of the operating system; 0: no loop runs here."""
        return int(_WHO.unpack_from(self._memory, _WHO_AT)[1])

    @property
    def trips(self) -> tuple[int, bool]:
        """How many trips have ended, and whether one is under way."""
        (count,) = _COUNT.unpack_from(self._memory, _TRIPS_AT)
        return count // 2, count % 2 == 1

    def take_lost(self) -> bool:
        """Return whether the answer of a trip was lost, and forget it."""
        is_lost = bool(self._memory[_LOST_AT]) and not self.trips[1]
        if is_lost:
            self._memory[_LOST_AT] = False
        return is_lost

    # Of its calls

    def hold(self, starts: Iterable[tuple[UUID, UUID]]) -> None:
        """Note the calls that the loop has, with their tickets: those that wait in its batch, and the one that runs."""
        held = [call.bytes + ticket.bytes for call, ticket in starts][:_MOST_HELD]
        _write(self._memory, _HELD_AT, b"".join(held))

    @property
    def held(self) -> list[tuple[UUID, UUID]]:
        """The calls that the loop has, with their tickets."""
        held = _text(self._memory, _HELD_AT)
        ids = [UUID(bytes=held[at : at + 16]) for at in range(0, len(held), 16)]
        return list(zip(ids[::2], ids[1::2], strict=True))

    def run(self, running: Running | None) -> None:
        """Note the call that runs now."""
        # The ticket last, and before another one none: with it there is a call.
        if running is not None:
            each = running
            task = each.task[-99:].encode()[-99:]
            _RUN.pack_into(
                self._memory, _RUN_AT, each.call.bytes, _NONE, each.attempt, each.began, each.soft, each.hard, task
            )
        self._memory[_TICKET_AT : _TICKET_AT + 16] = _NONE if running is None else running.ticket.bytes

    @property
    def running(self) -> Running | None:
        """The call that runs now."""
        while True:
            ticket = bytes(self._memory[_TICKET_AT : _TICKET_AT + 16])
            call, _, attempt, began, soft, hard, task = _RUN.unpack_from(self._memory, _RUN_AT)
            if ticket != self._memory[_TICKET_AT : _TICKET_AT + 16]:
                continue  # another one began meanwhile
            if ticket == _NONE:
                return None
            return Running(
                call=UUID(bytes=call),
                ticket=UUID(bytes=ticket),
                task=task.decode(errors="replace"),
                attempt=attempt,
                began=began,
                soft=soft,
                hard=hard,
            )

    # Of its ends

    def keep(self, ends: Sequence[Ended]) -> None:
        """Note the ends that no trip has recorded yet, these alone."""
        _write(self._memory, _ENDS_AT, b"")
        for each in ends:
            self.add(each)

    def add(self, ended: Ended) -> None:
        """Note one more end that no trip has recorded yet.

        One with a large result finds no room: if this process is killed before its next trip, its call runs again.
        """
        (length,) = _COUNT.unpack_from(self._memory, _ENDS_AT)
        kept = pickle.dumps(ended)
        if _ENDS_AT + _COUNT.size + length + len(kept) <= _SIZE:
            _write(self._memory, _ENDS_AT, kept, behind=length)

    @property
    def ends(self) -> list[Ended]:
        """The ends that no trip has recorded."""
        kept, ends = BytesIO(_text(self._memory, _ENDS_AT)), []
        with suppress(EOFError):
            while True:
                ends.append(pickle.load(kept))  # noqa: S301 -- written by a process of this worker
        return ends

    # Of the main process

    @property
    def is_condemned(self) -> bool:
        """Whether the main process ends this process: it must not finish its call first."""
        return self._memory[_CONDEMNED_AT] != 0

    def condemn(self) -> None:
        """Let the process end at the next signal, whatever it does."""
        self._memory[_CONDEMNED_AT] = True


class WakePipe:
    """Ends the sleep of a thread that polls its descriptor: from any thread, and from the handler of a signal."""

    def __init__(self) -> None:
        """Make the pipe."""
        self.descriptor, self._write = os.pipe()
        for each in (self.descriptor, self._write):
            os.set_blocking(each, False)

    def wake(self) -> None:
        """End the sleep, or the next one."""
        with suppress(BlockingIOError):
            os.write(self._write, b"x")

    def clear(self) -> None:
        """Forget what has ended a sleep."""
        with suppress(BlockingIOError):
            os.read(self.descriptor, _READ)


class Shared:
    """The places, the worker's direct queues, and the pipe by which loops are asked to leave."""

    current: ClassVar["Shared | None"] = None
    """That of the worker of this process, or of the one that forked it."""

    def __init__(self) -> None:
        """Make them, before the pool forks."""
        self._memory = memoryview(mmap.mmap(-1, _QUEUES + PLACES * _SIZE))
        self.events = EventPipe()
        self.leave_read, self._leave_write = os.pipe()
        os.set_blocking(self.leave_read, False)
        self._owner = os.getpid()
        self._known: tuple[bytes, dict[str, int]] = b"", {}

    def place(self, index: int) -> Place:
        """Return a place."""
        return Place(self._memory, index)

    @property
    def queues(self) -> dict[str, int]:
        """The worker's direct queues, with their weights."""
        text = _text(self._memory, 0)
        if text != self._known[0]:
            # While they are written they are those of before.
            with suppress(ValueError):
                self._known = text, json.loads(text)
        return self._known[1]

    def write_queues(self, queues: dict[str, int]) -> None:
        """Let the loops know the worker's direct queues. Raises ValueError where they take more than 64 KB."""
        text = json.dumps(queues).encode()
        if len(text) > _QUEUES - _COUNT.size - 1:
            message = f"the names of {len(queues)} direct queues are too long for one worker"
            raise ValueError(message)
        _write(self._memory, 0, text)

    @property
    def sends_events(self) -> bool:
        """Whether a monitor listens to the events of calls."""
        return self._memory[_QUEUES - 1] != 0

    @sends_events.setter
    def sends_events(self, sends: bool) -> None:
        self._memory[_QUEUES - 1] = sends

    def sender(self, task: Task | None, call: UUID) -> Callable[..., None]:
        """Return what writes an event of a call, while a monitor listens: its kind, and its fields."""

        def send_event(kind: str, **fields: Any) -> None:
            if self.sends_events and task is not None:
                self.events.send(kind, task, {"id": str(call)}, **fields)

        return send_event

    def ask_to_leave(self, count: int) -> None:
        """Ask so many loops to leave: the first that have ended their calls."""
        os.write(self._leave_write, b"x" * count)

    def take_back(self) -> None:
        """Take back what no loop has read of that."""
        with suppress(BlockingIOError):
            os.read(self.leave_read, PLACES)

    def close(self) -> None:
        """Have all loops leave, those that are to come, too."""
        if self._leave_write >= 0:
            os.close(self._leave_write)
            self._leave_write = -1

    def must_leave(self) -> bool | None:
        """Return whether a loop that asks is the one to leave; None: all must."""
        try:
            return None if not os.read(self.leave_read, 1) else True
        except BlockingIOError:
            return False

    @property
    def is_orphan(self) -> bool:
        """Whether the main process of this forked one is gone."""
        return os.getppid() != self._owner

    def enter_child(self) -> None:
        """Let a process that was forked see the end of the main process: that of the pipe."""
        if os.getpid() != self._owner:
            self.close()


def tickets_of(places: Iterable[Place], *, patience_s: float) -> set[UUID] | None:
    """Return the tickets of all calls that loops have, once each trip that is under way has ended; None: not yet.

    What a trip that has ended before this began has started is among them, unless it has ended, too.
    """
    found: set[UUID] = set()
    until = monotonic() + patience_s
    for place in places:
        trips, is_in_trip = place.trips
        while is_in_trip and place.trips == (trips, True):
            if monotonic() > until:
                return None
            sleep(_NAP_S)
        found.update(ticket for _, ticket in place.held)
        found.update(each.ticket for each in place.ends)
    return found
