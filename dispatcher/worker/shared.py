"""Shared memory between a worker's main process and its loops: one place for each loop, written by the loop.

It is made before the pool forks. In pools of threads and greenlets the loops are in the main process itself.
"""

import json
import mmap
import os
import pickle
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from time import monotonic, sleep
from typing import ClassVar, Final
from uuid import UUID

from dispatcher.lifecycle.finish import Ended
from dispatcher.worker.events import EventPipe

PLACES: Final = 1024
_QUEUES: Final = 65_536
"""Bytes for the queues."""
_SIZE: Final = 16_384
"""Bytes of a place; pages that are not written take no memory."""
_HEAD: Final = struct.Struct("<Q16siQ??")
"""A sequence number, the process's id, its pid, how many trips it has ended, whether one is under way, and whether the
answer of one was lost."""
_RUN: Final = struct.Struct("<16s16siddd100p")
"""The call that runs, its ticket, the attempt, when it began, its soft and its hard limit (monotonic), the task."""
_LENGTH: Final = struct.Struct("<Q")
_RUN_AT: Final = _HEAD.size
_CONDEMNED_AT: Final = _RUN_AT + _RUN.size
_HELD_AT: Final = _CONDEMNED_AT + 1
_MOST_HELD: Final = 64
_ENDS_AT: Final = _HELD_AT + 8 + 32 * _MOST_HELD
_NONE: Final = bytes(16)
_NAP_S: Final = 0.002
_READS: Final = 50
"""How often a record is read that is being written."""


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

    def __init__(self, memory: mmap.mmap, index: int) -> None:
        """Name the place; nothing is written."""
        self._memory, self.index = memory, index
        self._at = _QUEUES + index * _SIZE

    def clear(self) -> None:
        """Make it ready for a loop that is about to start."""
        self._memory[self._at : self._at + _ENDS_AT + 8] = bytes(_ENDS_AT + 8)

    # Of the process

    def enter(self, process: UUID) -> None:
        """Note that this process has the place."""
        self._write_head(process.bytes, os.getpid(), 0, is_in_trip=False, is_lost=False)

    def leave(self) -> None:
        """Note that the loop has ended in order: it holds nothing."""
        self._write_head(_NONE, 0, 0, is_in_trip=False, is_lost=False)

    def begin_trip(self) -> None:
        """Note that a trip is under way, which may start calls that are not noted here yet."""
        process, pid, trips, _, is_lost = self._head()
        self._write_head(process, pid, trips, is_in_trip=True, is_lost=is_lost)

    def end_trip(self, *, is_lost: bool = False) -> None:
        """Note that what the trip has started is noted. is_lost: its answer is not known."""
        process, pid, trips, _, was_lost = self._head()
        self._write_head(process, pid, trips + 1, is_in_trip=False, is_lost=is_lost or was_lost)

    @property
    def process(self) -> UUID | None:
        """The id of the process that has the place; None: no loop runs here."""
        found = self._head()[0]
        return None if found == _NONE else UUID(bytes=found)

    @property
    def pid(self) -> int:
        """The process of the operating system; 0: no loop runs here."""
        return self._head()[1]

    @property
    def trips(self) -> tuple[int, bool]:
        """How many trips have ended, and whether one is under way."""
        _, _, trips, is_in_trip, _ = self._head()
        return trips, is_in_trip

    def take_lost(self) -> bool:
        """Return whether the answer of a trip was lost, and forget it."""
        process, pid, trips, is_in_trip, is_lost = self._head()
        if is_lost and not is_in_trip:
            self._write_head(process, pid, trips, is_in_trip=False, is_lost=False)
            return True
        return False

    # Of its calls

    def hold(self, starts: Iterable[tuple[UUID, UUID]]) -> None:
        """Note the calls that the loop has, with their tickets: those that wait in its batch, and the one that runs."""
        held = [call.bytes + ticket.bytes for call, ticket in starts][:_MOST_HELD]
        at = self._at + _HELD_AT + 8
        _LENGTH.pack_into(self._memory, at - 8, 0)
        self._memory[at : at + 32 * len(held)] = b"".join(held)
        _LENGTH.pack_into(self._memory, at - 8, len(held))

    @property
    def held(self) -> list[tuple[UUID, UUID]]:
        """The calls that the loop has, with their tickets."""
        (count,) = _LENGTH.unpack_from(self._memory, self._at + _HELD_AT)
        at = self._at + _HELD_AT + 8
        pairs = [self._memory[at + 32 * n : at + 32 * n + 32] for n in range(count)]
        return [(UUID(bytes=pair[:16]), UUID(bytes=pair[16:])) for pair in pairs]

    def run(self, running: Running | None) -> None:
        """Note the call that runs now."""
        if running is None:
            # The ticket first: without it there is none.
            self._memory[self._at + _RUN_AT + 16 : self._at + _RUN_AT + 32] = _NONE
            return
        # The ticket last: with it there is one.
        each = running
        packed = _RUN.pack(
            each.call.bytes, _NONE, each.attempt, each.began, each.soft, each.hard, each.task[-99:].encode()[-99:]
        )
        self._memory[self._at + _RUN_AT : self._at + _RUN_AT + _RUN.size] = packed
        self._memory[self._at + _RUN_AT + 16 : self._at + _RUN_AT + 32] = each.ticket.bytes

    @property
    def running(self) -> Running | None:
        """The call that runs now."""
        while True:
            call, ticket, attempt, began, soft, hard, task = _RUN.unpack_from(self._memory, self._at + _RUN_AT)
            again = self._memory[self._at + _RUN_AT + 16 : self._at + _RUN_AT + 32]
            if ticket != again:
                continue
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
        _LENGTH.pack_into(self._memory, self._at + _ENDS_AT, 0)
        for each in ends:
            self.add(each)

    def add(self, ended: Ended) -> None:
        """Note one more end that no trip has recorded yet.

        One with a large result finds no room: if this process is killed before its next trip, its call runs again.
        """
        (length,) = _LENGTH.unpack_from(self._memory, self._at + _ENDS_AT)
        at = _ENDS_AT + 8 + length
        kept = pickle.dumps(ended)
        if at + len(kept) <= _SIZE:
            self._memory[self._at + at : self._at + at + len(kept)] = kept
            _LENGTH.pack_into(self._memory, self._at + _ENDS_AT, length + len(kept))

    @property
    def ends(self) -> list[Ended]:
        """The ends that no trip has recorded."""
        (length,) = _LENGTH.unpack_from(self._memory, self._at + _ENDS_AT)
        at = self._at + _ENDS_AT + 8
        kept, ends = BytesIO(self._memory[at : at + length]), []
        with suppress(EOFError):
            while True:
                ends.append(pickle.load(kept))  # noqa: S301 -- written by a process of this worker
        return ends

    # Of the main process

    @property
    def is_condemned(self) -> bool:
        """Whether the main process ends this process: it must not finish its call first."""
        return self._memory[self._at + _CONDEMNED_AT] != 0

    def condemn(self) -> None:
        """Let the process end at the next signal, whatever it does."""
        self._memory[self._at + _CONDEMNED_AT] = 1

    def _head(self) -> tuple[bytes, int, int, bool, bool]:
        for _ in range(_READS):
            seq, process, pid, trips, is_in_trip, is_lost = _HEAD.unpack_from(self._memory, self._at)
            if seq % 2 == 0 and _LENGTH.unpack_from(self._memory, self._at) == (seq,):
                break
            sleep(_NAP_S)
        # Or the process was killed while it wrote.
        return process, pid, trips, is_in_trip, is_lost

    def _write_head(self, process: bytes, pid: int, trips: int, *, is_in_trip: bool, is_lost: bool) -> None:
        (seq,) = _LENGTH.unpack_from(self._memory, self._at)
        odd = seq | 1
        _LENGTH.pack_into(self._memory, self._at, odd)
        _HEAD.pack_into(self._memory, self._at, odd, process, pid, trips, is_in_trip, is_lost)
        _LENGTH.pack_into(self._memory, self._at, odd + 1)


class Shared:
    """The places, the worker's direct queues, and the pipe by which loops are asked to leave."""

    current: ClassVar["Shared | None"] = None
    """That of the worker of this process, or of the one that forked it."""

    def __init__(self) -> None:
        """Make them, before the pool forks."""
        self._memory = mmap.mmap(-1, _QUEUES + PLACES * _SIZE)
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
        (length,) = _LENGTH.unpack_from(self._memory, 0)
        text = self._memory[8 : 8 + length]
        if text != self._known[0]:
            # While they are written they are those of before.
            with suppress(ValueError):
                self._known = text, json.loads(text)
        return self._known[1]

    def write_queues(self, queues: dict[str, int]) -> None:
        """Let the loops know the worker's direct queues. Raises ValueError where they take more than 64 KB."""
        text = json.dumps(queues).encode()
        if len(text) > _QUEUES - 9:
            message = f"the names of {len(queues)} direct queues are too long for one worker"
            raise ValueError(message)
        _LENGTH.pack_into(self._memory, 0, 0)
        self._memory[8 : 8 + len(text)] = text
        _LENGTH.pack_into(self._memory, 0, len(text))

    @property
    def sends_events(self) -> bool:
        """Whether a monitor listens to the events of calls."""
        return self._memory[_QUEUES - 1] != 0

    @sends_events.setter
    def sends_events(self, sends: bool) -> None:
        self._memory[_QUEUES - 1] = sends

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

    def known(self, indexes: Iterable[int], *, patience_s: float) -> set[UUID] | None:
        """Return the tickets of all calls that loops have, once each trip that is under way has ended; None: not yet.

        What a trip that has ended before this began has started is among them, unless it has ended, too.
        """
        known: set[UUID] = set()
        until = monotonic() + patience_s
        for index in indexes:
            place = self.place(index)
            trips, is_in_trip = place.trips
            while is_in_trip and place.trips == (trips, True):
                if monotonic() > until:
                    return None
                sleep(_NAP_S)
            known.update(ticket for _, ticket in place.held)
            known.update(each.ticket for each in place.ends)
        return known
