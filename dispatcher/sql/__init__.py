"""One statement per file, in a folder for each step; `fetch` runs one by its name.

Rows are frozen dataclasses. A trip to the server costs more than most of the statements, so those that do not need
each other's rows are sent together: `ask` several inside `together()`, and read their `rows` after it.
"""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Generic, TypeVar

import psycopg
from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.abc import PQGen
from psycopg.generators import send

from dispatcher.conf import conf, eager_propagates
from dispatcher.errors import CallInvalid, RowLocked
from dispatcher.sql import rows
from dispatcher.sql.connections import Intact, discard, is_within, make_ready, prepares
from dispatcher.sql.connections import atomic as atomic
from dispatcher.sql.connections import connection as connection
from dispatcher.sql.connections import discard_connection as discard_connection
from dispatcher.sql.connections import in_transaction as in_transaction
from dispatcher.sql.connections import listen as listen
from dispatcher.sql.connections import new_connection as new_connection
from dispatcher.sql.connections import notices as notices
from dispatcher.sql.connections import read_notifications as read_notifications
from dispatcher.sql.connections import using as using
from dispatcher.sql.errors import DATABASE_ERRORS as DATABASE_ERRORS
from dispatcher.sql.errors import interruption_of as interruption_of
from dispatcher.sql.errors import is_interruption as is_interruption
from dispatcher.sql.errors import is_locked as is_locked
from dispatcher.sql.errors import is_refused as is_refused
from dispatcher.sql.errors import is_unavailable as is_unavailable
from dispatcher.sql.errors import sqlstate as sqlstate
from dispatcher.sql.faults import in_words, report
from dispatcher.sql.rows import array as array
from dispatcher.sql.rows import interval as interval
from dispatcher.sql.rows import record as record
from dispatcher.sql.statements import names as names
from dispatcher.sql.statements import statement as statement

logger = logging.getLogger(__name__)

PATIENCE: Final = timedelta(seconds=10)
"""How long people wait for a row that another transaction keeps locked, by any way: it may hold a web server's thread.
"""

Row = TypeVar("Row")

_CURSORS: Final = "dispatcher_cursors"
"""The attribute of a connection that holds its cursors: they name it, so elsewhere they would keep it for ever."""


class Clock:
    """The time that this process's statements are given where a test has set it; None: they ask the database."""

    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Asked(Generic[Row]):
    """A statement on its way; read its rows after `together()`."""

    cursor: psycopg.Cursor[Row]
    wrapper: BaseDatabaseWrapper

    def rows(self) -> list[Row]:
        """Return the rows; a database error comes as django.db's."""
        with Intact(self.wrapper), self.wrapper.wrap_database_errors:
            return self.cursor.fetchall()

    def row(self) -> Row:
        """Return the only row."""
        (row,) = self.rows()
        return row


def after_commit(work: Callable[[], object]) -> None:
    """Do this after the caller's commit, or at once without a transaction; not at all if it rolls back.

    With autocommit off, outside of an atomic block, Django has no such hooks: it is left to the next tick.
    A failure is logged: it reaches neither the caller nor the other hooks. Where Celery runs tasks eagerly and
    propagates what they raise, it is raised. So is a soft time limit of the task that sends.
    """

    def do() -> None:
        handled = sys.exception()
        try:
            work()
        except Exception as error:
            if (interruption := interruption_of(error, handled)) is not None:
                raise interruption from None
            if eager_propagates():
                raise
            if not report(error):
                words = in_words(error)
                logger.log(
                    logging.ERROR if words is None else logging.WARNING,
                    "work after the commit failed; the next tick does what is left of it: %s",
                    words or error,
                    exc_info=words is None,
                )

    if connection().in_atomic_block or not in_transaction():
        transaction.on_commit(do, using=conf().database)


@contextmanager
def own_transaction(*, lock_wait: timedelta | None = None, in_order: bool = False) -> Iterator[None]:
    """Open a transaction of the engine's own, whose statements are planned by their indexes.

    lock_wait: how long a statement waits for a lock; then it raises OperationalError. in_order: whether rows are read
    in the order of an index where one has it. Within a caller's transaction it is a part of that, as that is.
    """
    is_within = in_transaction()
    with atomic():
        if not is_within:
            wait = None if lock_wait is None else lock_wait // timedelta(milliseconds=1)
            ask("tune", object, {"in_order": in_order, "lock_wait": wait})
        yield


@contextmanager
def patient(what: str) -> Iterator[None]:
    """Open a transaction, or a part of the caller's, whose statements wait for a lock for PATIENCE at the most.

    what: is locked then, in words. A shorter bound of the caller's own stands. Raises RowLocked.
    """
    bounds, is_within = "bound_locks", in_transaction()
    try:
        with atomic():
            (before,) = fetch(bounds, str, {"wait": f"{PATIENCE // timedelta(milliseconds=1)}ms", "is_put_back": False})
            yield
            if is_within:
                ask(bounds, str, {"wait": before, "is_put_back": True})
    except DATABASE_ERRORS as error:
        if not is_locked(error):
            raise
        raise RowLocked(what, PATIENCE.total_seconds()) from error.__cause__


@contextmanager
def outside() -> Iterator[None]:
    """Commit at once what is written inside, on another connection, whatever becomes of the caller's transaction.

    A transaction in which Django's TestCase runs a test counts as none: that sees nothing else, and rolls all back.
    Raises CallInvalid where that waits for the caller's transaction, or for another one, for longer than PATIENCE.
    """
    is_test = any(getattr(block, "_from_testcase", False) for block in connection().atomic_blocks)
    if is_test or not in_transaction():
        yield
        return
    apart = new_connection()
    try:
        with using(apart), patient("a call of this id"):
            yield
    except RowLocked as error:
        raise CallInvalid(
            "outside",
            f"an open transaction has kept what the call needs locked for {PATIENCE.total_seconds():g} s; it is this "
            "one if that has sent a call with the same task_id. Give another task_id, or send it without outside=True.",
        ) from error
    finally:
        apart.close()


@contextmanager
def together() -> Iterator[None]:
    """Send the statements asked inside in one go, as one transaction, or within the caller's.

    They are planned once and by their indexes; in a caller's transaction, its own statements are planned as before.
    """
    wrapper = connection()
    if not conf().pipeline:
        yield
        return
    with _tuned_within(wrapper) if is_within(wrapper) else _pipeline(wrapper):
        if not is_within(wrapper):
            ask("tune", object, {"in_order": False, "lock_wait": None})
        yield


@contextmanager
def _tuned_within(wrapper: BaseDatabaseWrapper) -> Iterator[None]:
    """Tune a part of a caller's transaction. An interruption leaves it as it came, not as the driver's fault."""
    handled = sys.exception()
    try:
        with _pipeline(wrapper):
            ask("tune_within", object, {"is_over": False})
            is_broken = False
            try:
                yield
            except DATABASE_ERRORS:
                is_broken = True
                raise
            finally:
                if not is_broken:
                    ask("tune_within", object, {"is_over": True})
    except DATABASE_ERRORS as fault:
        if (interruption := interruption_of(fault, handled)) is None:
            raise
        discard(wrapper)
        raise interruption from None


@contextmanager
def _pipeline(wrapper: BaseDatabaseWrapper) -> Iterator[None]:
    with Intact(wrapper), wrapper.wrap_database_errors:
        make_ready(wrapper)
        raw: psycopg.Connection[Any] = wrapper.connection
        with raw.pipeline() as pipeline, Intact(wrapper):
            pipeline._communicate_gen = partial(_gather, pipeline)  # type: ignore[method-assign]  # noqa: SLF001
            yield


def _gather(pipeline: psycopg.Pipeline) -> PQGen[None]:
    """Leave what is asked with libpq, in place of psycopg's way: it would send each statement by itself.

    All goes at the end, and before rows are waited for; then all rows are fetched.
    """
    while pipeline.command_queue:
        pipeline.command_queue.popleft()()
    if pipeline.result_queue and pipeline.result_queue[-1] is None:
        yield from send(pipeline.pgconn)
        yield from pipeline._fetch_gen(flush=False)  # noqa: SLF001


def ask(name: str, row: type[Row], params: Mapping[str, Any]) -> Asked[Row]:
    """Run `name`.sql; its rows are there at the end of `together()`, or at once outside of it.

    The parameter `now` need not be given: without one it is that of the Clock.
    row: the dataclass or the model of its rows, or the type of its only column.
    """
    wrapper = connection()
    wrapper.validate_no_broken_transaction()
    with Intact(wrapper), wrapper.wrap_database_errors:
        make_ready(wrapper)
        cursor = _cursor(wrapper, name, row)
        wanted = statement(name)
        values = [params[name] if name != "now" else params.get(name) or Clock.at for name in wanted.parameters]
        cursor.execute(wanted.text, values, prepare=prepares(wrapper))
        return Asked(cursor, wrapper)


def has_run(name: str) -> bool:
    """Return whether this thread's connection has run `name`.sql: the server plans on each connection by itself."""
    raw = connection().connection
    return raw is not None and any(name == known for known, _ in raw.__dict__.get(_CURSORS, ()))


def fetch(name: str, row: type[Row], params: Mapping[str, Any]) -> list[Row]:
    """Run `name`.sql and return its rows; a database error comes as django.db's."""
    return ask(name, row, params).rows()


def fetch_checked(name: str, row: type[Row], params: Mapping[str, Any]) -> list[Row]:
    """Run `name`.sql and return its rows; on a connection that was kept it is also the check, where one is due.

    It saves the trip of Django's own check. The statement runs again where it finds the connection broken: it only
    reads, or may be repeated.
    """
    wrapper: Any = connection()
    is_due = wrapper.connection is not None and wrapper.health_check_enabled and not wrapper.health_check_done
    if is_due and not in_transaction():
        wrapper.health_check_done = True
        try:
            return fetch(name, row, params)
        except DATABASE_ERRORS as error:
            if interruption_of(error) is not None or not is_unavailable(error):
                raise
            discard_connection()
    return fetch(name, row, params)


def now() -> datetime:
    """Return the time by the database's clock."""
    (time,) = fetch("read_clock", datetime, {})
    return time


def fetch_in_order(name: str, row: type[Row], params: Mapping[str, Any]) -> list[Row]:
    """Run `name`.sql in its own transaction, planned by the order of indexes and without sorts; return its rows."""
    with own_transaction(in_order=True):
        return fetch(name, row, params)


def change(name: str, params: Mapping[str, Any]) -> int:
    """Run `name`.sql, which returns no rows, and return how many it changed; in a pipeline that is not known yet."""
    return ask(name, object, params).cursor.rowcount


def _cursor(wrapper: BaseDatabaseWrapper, name: str, row: type[Row]) -> psycopg.Cursor[Row]:
    """Give the connection's cursor for a statement, which is prepared."""
    raw: psycopg.Connection[Any] = wrapper.connection
    known: dict[tuple[str, type], psycopg.Cursor[Any]] = raw.__dict__.setdefault(_CURSORS, {})
    cursor = known.get((name, row))
    if cursor is None:
        if raw.prepare_threshold is None and prepares(wrapper):
            raw.prepare_threshold = 5
            raw.prepared_max = max(raw.prepared_max or 0, 100)
        cursor = known[name, row] = rows.cursor(raw, row)
    return cursor
