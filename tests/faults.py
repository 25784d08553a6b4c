"""What goes wrong around a system that is driven (tests.drive): users' locks, processes that die, outages.

Like the driver, it knows the engine's inside, and the tests do not.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar
from uuid import UUID

import psycopg
from django.db import connection

from dispatcher import engine
from dispatcher.engine import fed, workers
from dispatcher.extension import registered
from dispatcher.lifecycle import finish
from dispatcher.models import CallQueue
from dispatcher.states import Delivery
from tests.drive import Drive, Run, _worker_id
from tests.races.lockstep import DEADLINE, actors, holding

P = ParamSpec("P")
T = TypeVar("T")

PROMPTLY = 1.5
"""Long for what takes 20 ms, and short for what waits for a transaction that stays open (s)."""

_LANE = "(SELECT lane_id FROM dispatcher_callqueue WHERE id = %s)"
_LOCKS = {
    "call": "SELECT FROM dispatcher_callqueue WHERE id = %s FOR UPDATE",
    "lane": f"SELECT FROM dispatcher_lane WHERE id = {_LANE} FOR UPDATE",
    "slot": "SELECT FROM dispatcher_slot WHERE call_id = %s FOR UPDATE",
    "key": "SELECT FROM dispatcher_ratelimitkey WHERE name = %s FOR UPDATE",
}


@contextmanager
def locked(row: str, of: CallQueue | Run | str) -> Iterator[psycopg.Connection[Any]]:
    """Be a user whose transaction keeps a row locked: a `call`, its `lane` or `slot`, or a `key` by its name."""
    with holding(_LOCKS[row], [of if isinstance(of, str) else _id_of(of)]) as user:
        yield user


def promptly(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do something on a connection of its own; fail if it waits for an open transaction."""
    with actors(1) as (actor,):
        doing = actor.begin(work, *args, **kwargs)
        try:
            return doing.result(PROMPTLY)
        except TimeoutError:
            message = f"{getattr(work, '__qualname__', work)} waits"
            raise AssertionError(message) from None


def end_and_die(run: Run) -> None:
    """Record the end of a run in a process that dies with its commit: nothing that would follow it happens."""
    assert finish.complete(run.call, run.ticket, result=None) is not None


def lose_answer(drive: Drive, *known: Run, worker: str = "one", seconds: float) -> None:
    """Let a worker have lost the answer that would have given it more than these runs; at most so much time passes."""
    if drive.delivery == Delivery.DIRECT:
        fed.give_back_unknown(_worker_id(worker), {run.handle.claimed.claim_id for run in known})
        return
    drive.clock.forward(seconds)
    drive.beat(*known, worker=worker)
    drive.clock.forward(2)
    drive.recover()


def stop(drive: Drive, *, worker: str = "one", messages: list[tuple[UUID, UUID]] | None = None) -> int:
    """Shut a worker of Celery's down, that has these messages and what it runs; return how many calls go back."""
    assert drive.delivery != Delivery.HTTP
    stopped = workers.stop_accepting(_worker_id(worker), messages or [])
    return stopped + workers.release_all(_worker_id(worker))


def watch(drive: Drive, seconds: int, *, every: int = 10) -> None:
    """Let time pass in which leases are looked at every so many seconds, as workers and beat do."""
    for _ in range(0, seconds, every):
        drive.clock.forward(every)
        engine.recover()
        registered().reclaim()


def recover_through_a_lock(drive: Drive, table: str, *, seconds: float) -> None:
    """Let recovery wait for so long until a table is free that somebody has locked."""
    with actors(1) as (recovery,):
        with holding(f"LOCK TABLE {table} IN SHARE MODE") as user:
            recovering = [recovery.begin(engine.recover), recovery.begin(registered().reclaim)]
            recovery.wait_blocked(by=user)
            drive.clock.forward(seconds)
            user.rollback()
        for each in recovering:
            each.result(DEADLINE)


def erase(*calls: CallQueue | Run) -> None:
    """Delete calls by a statement that knows nothing of the engine, whatever they wait for or hold."""
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM dispatcher_callqueue WHERE id = ANY (%s)", [[_id_of(call) for call in calls]])


def _id_of(call: CallQueue | Run) -> UUID:
    return call.call if isinstance(call, Run) else call.id
