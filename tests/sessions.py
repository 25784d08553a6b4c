"""Sessions of the processes that tests play: a process whose session is over is not woken (see lock_session.sql).

They are on one connection of the tests' own, since what a process asks for itself is not what others see of it.
"""

from threading import Lock
from typing import Any
from uuid import UUID

import psycopg

from tests import db_admin


class _Held:
    lock = Lock()
    """Of two connections that threads make at once, one would be lost, and wait for the other for ever."""
    connection: psycopg.Connection[Any] | None = None
    processes: set[UUID] = set()


def begin(process: UUID) -> None:
    """Let this process have a session until the test ends, or until `end`."""
    with _Held.lock:
        if _Held.connection is None:
            _Held.connection = db_admin.connect()
        if process not in _Held.processes:
            _Held.connection.execute("SELECT pg_advisory_lock(hashtextextended(%s::uuid::text, 0))", [process])
            _Held.processes.add(process)


def end(process: UUID) -> None:
    """Let the session of this process be over."""
    if _Held.connection is not None and process in _Held.processes:
        _Held.processes.remove(process)
        _Held.connection.execute("SELECT pg_advisory_unlock(hashtextextended(%s::uuid::text, 0))", [process])


def end_all() -> None:
    """End those that there are."""
    if _Held.connection is not None:
        _Held.connection.close()
    _Held.connection = None
    _Held.processes.clear()
