"""What goes wrong around a system that is driven (tests.drive): users' locks, processes that die, outages.

Like the driver, it knows the engine's inside, and the tests do not.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, ParamSpec, Self, TypeVar
from uuid import UUID

import psycopg
import pytest
from django.db import OperationalError, connection, transaction
from django.db.models import Model
from kombu import Producer
from psycopg.sql import SQL, Identifier

from dispatcher import engine
from dispatcher.ending import completed
from dispatcher.engine import direct, workers
from dispatcher.extension import registered
from dispatcher.lifecycle import heartbeat, take, wake
from dispatcher.lifecycle.finish import Ended
from dispatcher.lifecycle.take import Taker
from dispatcher.models import CallQueue, LaneSite, Process, RateLimitKey, Slot, Start
from dispatcher.signals import call_finished
from dispatcher.states import Delivery, State
from tests import db_admin, sessions
from tests.deliveries.broker import Broker
from tests.deliveries.celery import worker_id
from tests.deliveries.direct import process_of
from tests.drive import TASK, Drive, Run
from tests.races.lockstep import DEADLINE, Actor, actors, holding

P = ParamSpec("P")
T = TypeVar("T")

LONGEST_WAIT = timedelta(seconds=0.6)
"""Longer than a process of the engine waits for a lock (0.5 s, see docs/explanation/guarantees.md)."""
POLL_S = 0.1

_LANE = "(SELECT lane_id FROM dispatcher_callqueue WHERE id = %s)"
_KEY = "(SELECT id FROM dispatcher_ratelimitkey WHERE name = %s)"
_LOCKS = {
    "call": "SELECT FROM dispatcher_callqueue WHERE id = %s FOR UPDATE",
    "lane": "SELECT FROM dispatcher_lane AS lane JOIN dispatcher_lanesite AS site ON site.lane_id = lane.id "
    f"WHERE lane.id = {_LANE} FOR UPDATE",
    "place": f"SELECT FROM dispatcher_lanesite WHERE lane_id = {_LANE} FOR NO KEY UPDATE",
    "slot": "SELECT FROM dispatcher_slot WHERE call_id = %s FOR UPDATE",
    "key": "SELECT FROM dispatcher_ratelimitkey WHERE name = %s FOR UPDATE",
    "shares": f"SELECT FROM dispatcher_share WHERE key_id = {_KEY} FOR UPDATE",
    "block": f"SELECT FROM dispatcher_block WHERE key_id = {_KEY} FOR UPDATE",
}


@contextmanager
def locked(row: str, of: CallQueue | Run | str) -> Iterator[psycopg.Connection[Any]]:
    """Be a user whose transaction keeps a row locked: a `call`, its `lane` or `slot`; a `key`, its `shares` or `block`.

    `place`: be a trip that looks at its lane.
    """
    with holding(_LOCKS[row], [of if isinstance(of, str) else id_of(of)]) as user:
        yield user


class _Prompt:
    """The thread and the connection on which things are done promptly."""

    actor: Actor | None = None


@contextmanager
def one_connection() -> Iterator[None]:
    """Let `promptly` keep its connection from one thing to the next."""
    try:
        yield
    finally:
        _give_up()


def promptly(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do something on a connection of its own; fail if it waits for one lock for longer than the engine may.

    What is slow and does not wait may take its time. Within `one_connection`.
    """
    actor = _Prompt.actor = _Prompt.actor or Actor()
    doing = actor.begin(work, *args, **kwargs)
    while not wait([doing], POLL_S).done:
        if _waits(actor):
            _give_up()
            message = f"{getattr(work, '__qualname__', work)} waits"
            raise AssertionError(message)
    return doing.result()


def _waits(actor: Actor) -> bool:
    ask = "SELECT count(*) FROM pg_locks WHERE pid = ANY (%s) AND clock_timestamp() - waitstart > %s"
    (count,) = db_admin.monitor().execute(ask, [list(db_admin.backends(actor.name)), LONGEST_WAIT]).fetchone() or (0,)
    return bool(count)


def _give_up() -> None:
    if _Prompt.actor is not None:
        _Prompt.actor.close()
        _Prompt.actor = None


@contextmanager
def received_ends(*, fails: bool = False) -> Iterator[list[tuple[UUID, State, str | None]]]:
    """Give what a receiver gets of the ends of attempts: the call, its state and its error; it may fail each time."""
    received: list[tuple[UUID, State, str | None]] = []

    def receive(**facts: Any) -> None:
        received.append((facts["call_id"], facts["state"], facts["error"] and facts["error"]["type"]))
        if fails:
            raise RuntimeError

    call_finished.connect(receive)
    try:
        yield received
    finally:
        call_finished.disconnect(receive)


@contextmanager
def ending_through_a_lock(drive: Drive, run: Run, row: str) -> Iterator["Future[bool]"]:
    """Let a worker record an end while a row of the call is locked; on the way out it is free, and the end is done."""
    with actors(1) as (worker,):
        with locked(row, run):
            ending = worker.begin(drive.end, run)
            assert not wait([ending], POLL_S).done
            yield ending
        ending.result(DEADLINE)


def forward_unnoted(drive: Drive, seconds: float) -> None:
    """Let time pass where rows were changed by hand: the sweep of the tick finds what no note leads to."""
    drive.clock.forward(seconds)
    assert engine.sweep() > 0
    engine.tick(now=drive.clock.now)


def end_and_die(run: Run) -> None:
    """Record the end of a run in a process that dies with its commit: nothing that would follow it happens."""
    ended = Ended(call_id=run.call, ticket=run.ticket, claim_id=None, ending=completed(None))
    assert take.take(Taker(), [ended]).ended


def die_while_ending(drive: Drive, run: Run) -> None:
    """Let a worker's connection end before its report of an end commits."""
    with actors(1) as (worker,):
        ending = worker.begin(_end_and_die, drive, run)
        assert isinstance(ending.exception(DEADLINE), OperationalError)


def _end_and_die(drive: Drive, run: Run) -> None:
    with transaction.atomic():
        # In a transaction that is the caller's own, nothing is tried again.
        assert drive.end(run)
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


def come(drive: Drive, *tasks: str, worker: str = "one", queues: Sequence[str] = ()) -> None:
    """Let a worker come, or come back, that knows these tasks."""
    workers.record_heartbeat(_info(worker, list(queues or [drive.queue]), list(tasks)), [])


def meet_unknown(drive: Drive, *, worker: str = "one") -> None:
    """Let a worker of Celery's meet the next call, whose task it does not know."""
    if isinstance(drive, Broker):
        message = drive.mailbox.take()
        assert message is not None
        return_unknown(*message)
        return
    assert not direct.step(Taker(worker=worker_id(worker), queues=[drive.queue], tasks=[]), room=1).starts


def return_unknown(call: UUID, ticket: UUID) -> bool:
    """Put a message back whose task its worker does not know; return whether that changed anything."""
    return workers.return_unknown(call, ticket)


def lose_answer(drive: Drive, *known: Run, worker: str = "one", seconds: float) -> None:
    """Let a worker have lost the answer that would have given it more than these runs; at most so much time passes."""
    if drive.delivery == Delivery.DIRECT:
        had = {run.ticket for run in known}
        direct.give_back([each for each in direct.started(worker_id(worker)) if each[1] not in had])
        return
    drive.clock.forward(seconds)
    drive.beat(*known, worker=worker)
    drive.clock.forward(2)
    drive.recover()


def lose_start(run: Run) -> None:
    """Take a start back that was committed, as a crash of the database does that loses the commit."""
    CallQueue.objects.filter(id=run.call).update(state=State.DISPATCHED, attempt=0, started_at=None, claim=None)
    Slot.objects.filter(call=run.call).update(started_at=None)
    Start.objects.all().delete()


def stop(drive: Drive, *, worker: str = "one", messages: list[tuple[UUID, UUID]] | None = None) -> int:
    """Shut a worker of Celery's down, that has these messages and what it runs; return how many calls go back."""
    assert drive.delivery != Delivery.HTTP
    stopped = workers.stop_accepting(worker_id(worker), messages or [])
    return stopped + workers.release_all(worker_id(worker))


def watch(drive: Drive, seconds: int, *, every: int = 10) -> None:
    """Let time pass in which leases are looked at every so many seconds, as workers and beat do."""
    for _ in range(0, seconds, every):
        drive.clock.forward(every)
        engine.recover()
        registered().reclaim()


def recover_through_a_lock(drive: Drive, model: type[Model], *, seconds: float) -> None:
    """Let recovery wait for so long until a table is free that a user has locked."""
    with actors(1) as (recovery,):
        with holding(f"LOCK TABLE {model._meta.db_table} IN SHARE MODE") as user:
            recovering = [recovery.begin(engine.recover), recovery.begin(registered().reclaim)]
            recovery.wait_blocked(by=user)
            drive.clock.forward(seconds)
            user.rollback()
        for each in recovering:
            each.result(DEADLINE)


@contextmanager
def parked_lanes(drive: Drive, count: int) -> Iterator[None]:
    """Let calls wait for a key that lets nothing in: in so many lanes, each of a queue of its own."""
    drive.key("closed", concurrency=0)
    call = drive.send("closed")
    drive.take()
    with connection.cursor() as cursor:
        cursor.execute(
            """
            WITH made AS (
                INSERT INTO dispatcher_lane (queue, priority, on_limit, key_ids)
                SELECT 'queue-' || number, lane.priority, lane.on_limit, lane.key_ids
                  FROM dispatcher_lane AS lane, generate_series(1, %s) AS number
                 WHERE lane.id = (SELECT lane_id FROM dispatcher_callqueue WHERE id = %s)
                RETURNING id, queue
            )
            INSERT INTO dispatcher_callqueue
            SELECT (jsonb_populate_record(call, jsonb_build_object(
                       'id', gen_random_uuid(), 'lane_id', made.id, 'queue', made.queue))).*
              FROM made, dispatcher_callqueue AS call
             WHERE call.id = %s
            """,
            [count, call.id, call.id],
        )
    LaneSite.objects.filter(queue__startswith="queue-").update(place=RateLimitKey.objects.get(name="closed").id)
    yield
    # Each would be looked at by the audit.
    erase(*CallQueue.objects.filter(queue__startswith="queue-"))


def erase(*calls: CallQueue | Run) -> None:
    """Delete calls by a statement that knows nothing of the engine, whatever they wait for or hold."""
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM dispatcher_callqueue WHERE id = ANY (%s)", [[id_of(call) for call in calls]])


class Idle:
    """A process of a worker of direct queues that has come to rest, and is notified of calls."""

    def __init__(self, drive: Drive, name: str, *, queues: Sequence[str] = ()) -> None:
        self.drive, self.queues = drive, list(queues or [drive.queue])
        self.info = _info(drive.site + name, self.queues)
        self.process = process_of(self.info.id)

    def __enter__(self) -> Self:
        heartbeat.record(self.info, [])
        self.connection = db_admin.connect()
        self.connection.execute(SQL("LISTEN {}").format(Identifier(wake.channel(self.process))))
        sessions.begin(self.process)
        taker = Taker(worker=self.info.id, process=self.process, queues=self.queues, tasks=[TASK])
        wake.serve(self.process, self.info.id, self.queues)
        Process.objects.filter(id=self.process).update(idle_at=self.drive.clock.now)
        with transaction.atomic():
            self.has_calls = bool(direct.step(taker, room=1, is_marked=True, may_rest=True).starts)
            """Whether it saw calls as it came to rest."""
            transaction.set_rollback(True)
        return self

    def __exit__(self, *_: object) -> None:
        wake.unmark(self.process)
        self.connection.close()

    def begin(self) -> None:
        """Be at rest no more."""
        wake.unmark(self.process)

    def die(self) -> None:
        """End without a word: the mark stays."""
        sessions.end(self.process)

    def notices(self) -> int:
        """Return how often it was woken since this was asked last."""
        return sum(1 for _ in self.connection.notifies(timeout=0.05))


def _info(name: str, queues: Sequence[str], tasks: Sequence[str] | None = None) -> heartbeat.WorkerInfo:
    return heartbeat.WorkerInfo(
        id=worker_id(name), name=name, host="here", pid=1, pool="prefork", processes=2, queues=queues, tasks=tasks
    )


def id_of(call: CallQueue | Run) -> UUID:
    return call.call if isinstance(call, Run) else call.id


@contextmanager
def manual() -> Iterator[None]:
    """Leave transactions to the caller, as `set_autocommit(False)` does."""
    transaction.set_autocommit(False)
    try:
        yield
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)


@contextmanager
def dying() -> Iterator[None]:
    """Commit, and do nothing of what was to be done after it, as a process that is killed."""
    with transaction.atomic():
        yield
        connection.run_on_commit.clear()


def refusing(monkeypatch: pytest.MonkeyPatch, refusal: BaseException) -> Callable[[], None]:
    """Refuse what goes to the queue `full`, until the answer is called."""
    send, queues = Producer.publish, ["full"]

    def send_or_refuse(*args: Any, **kwargs: Any) -> None:
        if kwargs["routing_key"] in queues:
            raise refusal
        send(*args, **kwargs)

    monkeypatch.setattr(Producer, "publish", send_or_refuse)
    return queues.clear
