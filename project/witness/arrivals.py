"""When bytes arrived, as the kernel knows it: a witness that is slow to read must not blame the caller."""

import io
import socket
import struct
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

# From asm-generic/socket.h; the socket module does not name it. The note is a timespec, see socket(7).
SO_TIMESTAMPNS = 35
TIMESPEC = struct.Struct("ll")


class Arrivals(io.RawIOBase):
    """A connection as a stream that knows when the bytes it read last arrived (`latest_at`, monotonic ns).

    Linux says so itself; elsewhere it is the moment at which this thread came to read them.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.latest_at = 0
        if sys.platform == "linux":
            connection.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Read what is there, and note when it had arrived; nothing comes any more of a caller that was killed."""
        try:
            count, notes, _, _ = self.connection.recvmsg_into([buffer], socket.CMSG_SPACE(TIMESPEC.size))
        except ConnectionResetError:
            return 0
        self.latest_at = time.monotonic_ns() - _age(notes)
        return count


def _age(notes: Iterable[tuple[int, int, bytes]]) -> int:
    """Return the nanoseconds since the arrival that the kernel noted; 0 if it noted none."""
    for level, kind, note in notes:
        if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS):
            seconds, nanoseconds = TIMESPEC.unpack(note)
            age: int = time.time_ns() - seconds * 1_000_000_000 - nanoseconds
            return max(0, age)
    return 0
