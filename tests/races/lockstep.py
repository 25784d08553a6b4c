"""Threads with connections of their own that go on step by step; what they wait for, PostgreSQL itself shows."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier, Event
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from uuid import UUID, uuid4

import psycopg
import pytest
from celery import Celery
from django.db import DatabaseError, connection, transaction
from django.db.models import QuerySet

from dispatcher import sql
from tests import db_admin
from tests.apps import APPS

if TYPE_CHECKING:
    from kombu import Connection

T = TypeVar("T")
P = ParamSpec("P")

DEADLINE = 60.0
POLL = 0.005

app = Celery("races", task_cls="dispatcher.celery:DispatchedTask", set_as_current=False)
"""Its broker is a queue in this process: what is published waits until it is taken out."""
# Not `broker_url`: CELERY_BROKER_URL in the environment would have the last word.
app.conf.update(broker_read_url="memory://", broker_write_url="memory://")


concurrent = pytest.mark.django_db(transaction=True, available_apps=APPS)
"""Marks tests whose threads see each other's commits; afterwards the tables of the dispatcher are emptied."""


_GATE = 20_251
_MAKE_GATE = """
CREATE FUNCTION wait_at_gate() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = 0
    AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared({gate}); RETURN NEW; END $$;
CREATE TRIGGER gate BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION wait_at_gate();
"""
_DROP_GATE = "DROP TRIGGER gate ON {table}; DROP FUNCTION wait_at_gate()"


class Mailbox:
    """What the broker holds for the workers of one Celery queue."""

    def __init__(self, queue: str = "celery") -> None:
        self.queue = queue
        self.connection: Connection = app.connection_for_read()
        app.amqp.queues[queue](self.connection.default_channel).declare()

    def take(self) -> tuple[UUID, UUID] | None:
        """Take a message out: the call and the ticket that it carries; None if there is none."""
        message = self.connection.default_channel.basic_get(self.queue, no_ack=True)
        if message is None:
            return None
        return UUID(message.headers["id"]), UUID(message.headers["dispatcher_ticket"])

    def empty(self) -> list[tuple[UUID, UUID]]:
        """Take all messages out."""
        return list(iter(self.take, None))


class Actor:
    """One thread with a database connection of its own; it does one thing at a time, and may be left waiting.

    Behind a pooler another process of the server may serve each of its transactions: they are known by its name.
    """

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(max_workers=1, initializer=app.set_current)
        self.name = f"actor-{uuid4()}"
        self.do(_be_called, self.name)

    def begin(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Let it start on something, and go on here."""
        return self.thread.submit(work, *args, **kwargs)

    def do(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Let it do something to the end."""
        return self.begin(work, *args, **kwargs).result(DEADLINE)

    def open(self) -> None:
        """Open a transaction that stays open from one thing to the next."""
        self.transaction = transaction.atomic()
        self.do(self.transaction.__enter__)

    def commit(self) -> None:
        """Commit it, and run what was to be run after the commit."""
        self.do(self.transaction.__exit__, None, None, None)

    def roll_back(self) -> None:
        """Roll it back."""
        error = RuntimeError("rolled back")
        self.do(self.transaction.__exit__, RuntimeError, error, None)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Have it stand still before each commit, with all that it has locked, until the way out."""
        thaws = Event()

        def freeze() -> None:
            commit = connection._commit  # noqa: SLF001 -- where Django has left to the server what remains to be done
            connection._commit = lambda: (thaws.wait(DEADLINE), commit())  # noqa: SLF001

        self.do(freeze)
        try:
            yield
        finally:
            thaws.set()

    def wait_blocked(self, *, by: "Actor | psycopg.Connection[Any]") -> None:
        """Wait until its statement waits for a lock of another's, or for somebody who waits for it."""

        def is_blocked() -> bool:
            holders = db_admin.backends(by.name) if isinstance(by, Actor) else {by.info.backend_pid}
            return bool(holders & db_admin.blockers(db_admin.backends(self.name)))

        eventually(is_blocked)

    def wait_blocked_or_done(self, doing: "Future[Any]") -> None:
        """Wait until what it does waits for anybody's lock, or is done."""
        eventually(lambda: doing.done() or db_admin.blockers(db_admin.backends(self.name)))

    def close(self) -> None:
        """End its connection, whatever it waits for, and then the thread."""
        db_admin.end(self.name)
        self.thread.submit(_close)
        self.thread.shutdown()


def _be_called(name: str) -> None:
    with connection.cursor() as cursor:
        # For good: it is one of the few settings that a pooler knows of, and sets wherever its client is served.
        cursor.execute("SELECT set_config('application_name', %s, false)", [name])


def _close() -> None:
    # Looked up on the thread whose connection it is.
    connection.close()


@contextmanager
def actors(count: int) -> Iterator[list[Actor]]:
    """Give so many actors, and end them."""
    made = [Actor() for _ in range(count)]
    try:
        yield made
    finally:
        for actor in made:
            actor.close()


@contextmanager
def holding(statement: str, params: Sequence[Any] = ()) -> Iterator[psycopg.Connection[Any]]:
    """Hold the locks that a statement takes, on a connection of their own; gone on the way out."""
    with db_admin.connect(autocommit=False) as held:
        held.execute(statement, params)
        yield held
        held.rollback()


@contextmanager
def gated(table: str) -> Iterator[psycopg.Connection[Any]]:
    """Stop each statement that inserts into a table, in its middle, until the connection rolls back.

    A trip of `take` inserts slots when it has chosen, and holds the locks of its lanes and keys then.
    """
    with db_admin.connect() as admin, db_admin.connect(autocommit=False) as gate:
        admin.execute(_MAKE_GATE.format(gate=_GATE, table=table))
        try:
            gate.execute("SELECT pg_advisory_xact_lock(%s)", [_GATE])
            yield gate
        finally:
            gate.rollback()
            admin.execute(_DROP_GATE.format(table=table))


def at_once(*work: Callable[[], T]) -> list[T]:
    """Do all of this at once, each on a thread and a connection of its own; return the results in order."""
    barrier = Barrier(len(work))

    def start(job: Callable[[], T]) -> T:
        try:
            app.set_current()
            connection.ensure_connection()
            barrier.wait(DEADLINE)
            return job()
        finally:
            connection.close()

    with ThreadPoolExecutor(max_workers=len(work)) as threads:
        jobs = [threads.submit(start, job) for job in work]
    return [job.result() for job in jobs]


def eventually(fact: Callable[[], T], *, within: float = DEADLINE, poll: float = POLL) -> T:
    """Wait until a fact is true, and return it; fail when it is not true in time (s)."""
    deadline = time.monotonic() + within
    while not (found := fact()):
        assert time.monotonic() < deadline, f"not within {within} s: {fact}"
        time.sleep(poll)
    return found


def assert_thaws(work: Callable[[], object], rows: QuerySet[Any]) -> None:
    """Assert that the server ends the transaction of a process that stands still in it, and frees these rows."""
    with actors(1) as (process,):
        with process.frozen():
            doing = process.begin(work)
            # Until then nothing else locks them: the work may skip what is locked.
            eventually(lambda: db_admin.stands_still(process.name))
            assert not _may_lock(rows)
            eventually(lambda: _may_lock(rows), within=15)
        with pytest.raises(DatabaseError) as raised:
            doing.result()
        assert sql.is_unavailable(raised.value), "who thaws tries again"


def _may_lock(rows: QuerySet[Any]) -> bool:
    """Return whether no other transaction has these rows locked."""
    with transaction.atomic():
        return rows.select_for_update(skip_locked=True).exists()
