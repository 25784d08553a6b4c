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
from weakref import WeakKeyDictionary

import psycopg
import psycopg.sql
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.abc import PQGen
from psycopg.errors import Diagnostic
from psycopg.generators import send
from psycopg.pq import PipelineStatus, TransactionStatus

from dispatcher.conf import conf, eager_propagates
from dispatcher.errors import DatabaseNotReady
from dispatcher.sql import rows
from dispatcher.sql.errors import DATABASE_ERRORS as DATABASE_ERRORS
from dispatcher.sql.errors import check_kind, named
from dispatcher.sql.errors import interruption_of as interruption_of
from dispatcher.sql.errors import is_interruption as is_interruption
from dispatcher.sql.errors import is_locked as is_locked
from dispatcher.sql.errors import is_refused as is_refused
from dispatcher.sql.errors import is_unavailable as is_unavailable
from dispatcher.sql.errors import sqlstate as sqlstate
from dispatcher.sql.faults import report
from dispatcher.sql.rows import interval as interval
from dispatcher.sql.statements import names as names
from dispatcher.sql.statements import statement as statement

logger = logging.getLogger(__name__)

Row = TypeVar("Row")

_HOOKS = "dispatcher_hooks"
"""Where a connection keeps what to do after the commit of a transaction of the engine's own."""

_BUSY: Final = (TransactionStatus.ACTIVE, TransactionStatus.UNKNOWN)

_cursors: WeakKeyDictionary[psycopg.Connection[Any], dict[tuple[str, type], psycopg.Cursor[Any]]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Asked(Generic[Row]):
    """A statement on its way; read its rows after `together()`."""

    cursor: psycopg.Cursor[Row]
    wrapper: BaseDatabaseWrapper

    @property
    def is_answered(self) -> bool:
        """Whether its rows have come; not those of a statement that failed."""
        return self.cursor.pgresult is not None

    def rows(self) -> list[Row]:
        """Return the rows; a database error comes as django.db's."""
        with _Intact(self.wrapper), self.wrapper.wrap_database_errors:
            return self.cursor.fetchall()

    def row(self) -> Row:
        """Return the only row."""
        (row,) = self.rows()
        return row


def connection() -> BaseDatabaseWrapper:
    """Return this thread's connection to the dispatcher's database."""
    return connections[conf().database]


def new_connection() -> BaseDatabaseWrapper:
    """Return another connection to the dispatcher's database, for `using`; it is not open yet.

    It belongs to no thread and to no pool, and nothing closes it but its owner.
    """
    wrapper = connections.create_connection(conf().database)
    own = {name: value for name, value in wrapper.settings_dict["OPTIONS"].items() if name != "pool"}
    wrapper.settings_dict = {
        **wrapper.settings_dict,
        "OPTIONS": own,
        "CONN_MAX_AGE": None,
        "CONN_HEALTH_CHECKS": False,
    }
    wrapper.inc_thread_sharing()
    return wrapper


@contextmanager
def using(wrapper: BaseDatabaseWrapper) -> Iterator[None]:
    """Let `connection` be this one inside: what a task has done to its thread's connection is not seen."""
    alias = conf().database
    before = connections[alias]
    connections[alias] = wrapper
    try:
        yield
    finally:
        connections[alias] = before


def in_transaction() -> bool:
    """Return whether what is written now commits with the caller: in an open block, or with autocommit off."""
    return _is_within(connection())


def _is_within(wrapper: BaseDatabaseWrapper) -> bool:
    is_autocommit = wrapper.autocommit if wrapper.connection is not None else wrapper.settings_dict["AUTOCOMMIT"]
    return wrapper.in_atomic_block or not is_autocommit


def discard_connection() -> None:
    """Close this thread's connection, so that the next statement makes another one."""
    _discard(connection())


def _discard(wrapper: BaseDatabaseWrapper) -> None:
    if wrapper.connection is not None:
        # A pool must not give it to the next one either.
        wrapper.connection.close()
    wrapper.close()


class _Intact:
    """Leaves no connection behind on which a statement was broken off, or whose server can't do its work now.

    A soft time limit is raised by a signal's handler, so also in the middle of a statement: what is sent on that
    connection next would fail, or read the answer that was left there.
    """

    __slots__ = ("_wrapper",)

    def __init__(self, wrapper: BaseDatabaseWrapper) -> None:
        self._wrapper = wrapper

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        if not isinstance(error, DATABASE_ERRORS):
            if _is_busy(self._wrapper, in_pipeline=is_interruption(error)):
                _discard(self._wrapper)
            return
        if is_unavailable(error) and not is_locked(error) and not self._wrapper.in_atomic_block:
            _discard(self._wrapper)
        if not isinstance(error, DatabaseNotReady) and (found := named(error)) is not None:
            raise found from error.__cause__


def _is_busy(wrapper: BaseDatabaseWrapper, *, in_pipeline: bool) -> bool:
    """Return whether a statement is under way; in a pipeline one always may be: `in_pipeline` is the answer there."""
    raw: psycopg.Connection[Any] | None = wrapper.connection
    if raw is None:
        return False
    return in_pipeline if raw.pgconn.pipeline_status != PipelineStatus.OFF else raw.pgconn.transaction_status in _BUSY


@contextmanager
def atomic() -> Iterator[None]:
    """Open a transaction on the dispatcher's database."""
    wrapper = connection()
    with _Intact(wrapper), transaction.atomic(using=wrapper.alias), _Intact(wrapper):
        yield


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
                logger.exception("work after the commit failed; the next tick does what is left of it")

    hooks: list[Callable[[], None]] | None = connection().__dict__.get(_HOOKS)
    if hooks is not None:
        hooks.append(do)
    elif connection().in_atomic_block or not in_transaction():
        transaction.on_commit(do, using=conf().database)


@contextmanager
def own_transaction(*, lock_wait: timedelta | None = None) -> Iterator[None]:
    """Open a transaction of the engine's own; its begin and commit travel with the statements inside.

    lock_wait: how long a statement waits for a lock; then it raises OperationalError. Within a caller's transaction it
    is a part of that, and waits as that does.
    """
    wrapper = connection()
    if in_transaction():
        with atomic():
            yield
        return
    # Django would run hooks at the commit, inside the pipeline: a statement of theirs that fails would end it.
    hooks: list[Callable[[], None]] = []
    wrapper.__dict__[_HOOKS] = hooks
    try:
        with _block(wrapper) if conf().pipeline else atomic():
            ask("tune", object, {})
            if lock_wait is not None:
                ask("limit_lock_wait", object, {"most": lock_wait // timedelta(milliseconds=1)})
            yield
    finally:
        del wrapper.__dict__[_HOOKS]
    for hook in hooks:
        hook()


@contextmanager
def _block(wrapper: BaseDatabaseWrapper) -> Iterator[None]:
    """Open a transaction in a pipeline, whose begin and commit make no trips of their own as Django's would."""
    try:
        with _pipeline(wrapper), _atomic_block(wrapper):
            ask("begin", object, {})
            yield
            ask("commit", object, {})
    except BaseException:
        wrapper.rollback()
        raise
    wrapper.run_and_clear_commit_hooks()


@contextmanager
def _atomic_block(wrapper: BaseDatabaseWrapper) -> Iterator[None]:
    """Let Django take it for one of its atomic blocks."""
    wrapper.in_atomic_block, wrapper.autocommit = True, False
    try:
        yield
    finally:
        wrapper.in_atomic_block, wrapper.autocommit, wrapper.needs_rollback = False, True, False
        if wrapper.closed_in_transaction:
            wrapper.connection = None


@contextmanager
def together() -> Iterator[None]:
    """Send the statements asked inside in one go, as one transaction, or within the caller's."""
    with one_trip():
        yield


@contextmanager
def one_trip() -> Iterator[Callable[[], None]]:
    """Send the statements asked inside in one go; what this yields commits those that were asked so far.

    Those before such a commit are planned once and by their indexes. In a caller's transaction there is no commit, and
    the caller's own statements are planned as before.
    """
    wrapper = connection()
    if not conf().pipeline or _is_own(wrapper):
        yield lambda: None
        return
    with _tuned_within(wrapper) if _is_within(wrapper) else _pipeline(wrapper) as commit:
        if not _is_within(wrapper):
            ask("tune", object, {})
        yield commit


@contextmanager
def _tuned_within(wrapper: BaseDatabaseWrapper) -> Iterator[Callable[[], None]]:
    """Tune a part of a caller's transaction. An interruption leaves it as it came, not as the driver's fault."""
    handled = sys.exception()
    try:
        with _pipeline(wrapper) as commit:
            ask("tune_within", object, {})
            is_broken = False
            try:
                yield commit
            except DATABASE_ERRORS:
                is_broken = True
                raise
            finally:
                if not is_broken:
                    ask("untune", object, {})
    except DATABASE_ERRORS as fault:
        if (interruption := interruption_of(fault, handled)) is None:
            raise
        _discard(wrapper)
        raise interruption from None


def _is_own(wrapper: BaseDatabaseWrapper) -> bool:
    """Return whether a transaction of the engine's own is open: it is a pipeline already, and tuned."""
    return wrapper.in_atomic_block and _HOOKS in wrapper.__dict__


@contextmanager
def _pipeline(wrapper: BaseDatabaseWrapper) -> Iterator[Callable[[], None]]:
    with _Intact(wrapper), wrapper.wrap_database_errors:
        _make_ready(wrapper)
        raw: psycopg.Connection[Any] = wrapper.connection
        with raw.pipeline() as pipeline, _Intact(wrapper):
            pipeline._communicate_gen = partial(_gather, pipeline)  # type: ignore[method-assign]  # noqa: SLF001
            # PgBouncer 1.18 leaves a client without an answer that has two transactions on their way.
            is_pooled = wrapper.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS")
            yield pipeline.sync if is_pooled else partial(_sync_later, pipeline)


def _gather(pipeline: psycopg.Pipeline) -> PQGen[None]:
    """Leave what is asked with libpq, in place of psycopg's way: it would send each statement by itself.

    All goes at the next commit, and before rows are waited for. At the end all rows are fetched.
    """
    while pipeline.command_queue:
        pipeline.command_queue.popleft()()
    if pipeline.result_queue and pipeline.result_queue[-1] is None:
        yield from send(pipeline.pgconn)
        yield from pipeline._fetch_gen(flush=False)  # noqa: SLF001


def _sync_later(pipeline: psycopg.Pipeline) -> None:
    """Commit what was asked so far. `pipeline.sync()` does the same, and waits for the answer: a trip of its own."""
    pipeline.command_queue.append(pipeline.pgconn.pipeline_sync)
    pipeline.result_queue.append(None)


def ask(name: str, row: type[Row], params: Mapping[str, Any]) -> Asked[Row]:
    """Run `name`.sql; its rows are there at the end of `together()`, or at once outside of it.

    row: the dataclass or the model of its rows, or the type of its only column.
    """
    wrapper = connection()
    wrapper.validate_no_broken_transaction()
    with _Intact(wrapper), wrapper.wrap_database_errors:
        _make_ready(wrapper)
        cursor = _cursor(wrapper, name, row)
        wanted = statement(name)
        values = [params[parameter] for parameter in wanted.parameters]
        cursor.execute(wanted.text, values, prepare=_prepares(wrapper))
        return Asked(cursor, wrapper)


def has_run(name: str) -> bool:
    """Return whether this thread's connection has run `name`.sql: the server plans on each connection by itself."""
    raw = connection().connection
    return raw is not None and any(name == known for known, _ in _cursors.get(raw, ()))


def fetch(name: str, row: type[Row], params: Mapping[str, Any]) -> list[Row]:
    """Run `name`.sql and return its rows; a database error comes as django.db's."""
    return ask(name, row, params).rows()


def skip_check() -> bool:
    """Let the next statement be the check of a connection that was kept, where one is due; return whether it is.

    It saves the trip of Django's own check. The caller tries again where the statement finds the connection broken.
    """
    wrapper: Any = connection()
    if wrapper.connection is None or in_transaction() or not wrapper.health_check_enabled or wrapper.health_check_done:
        return False
    wrapper.health_check_done = True
    return True


def fetch_checked(name: str, row: type[Row], params: Mapping[str, Any]) -> list[Row]:
    """Run `name`.sql, which only reads, and return its rows; it is also the check of a connection, see skip_check."""
    if skip_check():
        try:
            return fetch(name, row, params)
        except DATABASE_ERRORS as error:
            if not is_unavailable(error):
                raise
    return fetch(name, row, params)


def now() -> datetime:
    """Return the time by the database's clock."""
    (time,) = fetch("read_clock", datetime, {})
    return time


def read_in_order() -> None:
    """Plan the next statements of a transaction of the engine's own by the order of indexes (see tune_order.sql).

    Within a caller's transaction nothing is changed: it would outlast the statements.
    """
    if _HOOKS in connection().__dict__:
        ask("tune_order", object, {})


def fetch_in_order(name: str, row: type[Row], params: Mapping[str, Any]) -> list[Row]:
    """Run `name`.sql in its own transaction, planned by the order of indexes and without sorts; return its rows."""
    with own_transaction():
        read_in_order()
        asked = ask(name, row, params)
    return asked.rows()


@contextmanager
def notices() -> Iterator[list[tuple[str, str]]]:
    """Yield the list of the notices that this thread's connection receives inside, each with its context."""
    received: list[tuple[str, str]] = []

    def note(notice: Diagnostic) -> None:
        # It is gone when this returns.
        received.append((notice.message_primary or "", notice.context or ""))

    wrapper = connection()
    _make_ready(wrapper)
    raw: psycopg.Connection[Any] = wrapper.connection
    raw.add_notice_handler(note)
    try:
        yield received
    finally:
        raw.remove_notice_handler(note)


def change(name: str, params: Mapping[str, Any]) -> int:
    """Run `name`.sql, which returns no rows, and return how many it changed; in a pipeline that is not known yet."""
    return ask(name, object, params).cursor.rowcount


def listen(channel: str, on_notify: Callable[[], None]) -> int | None:
    """Listen on a channel with this thread's connection; return its file descriptor, None where that is not possible.

    on_notify: called when a notification is read, which may be in the middle of another statement. Behind a transaction
    pooler a notification would reach any client.
    """
    wrapper = connection()
    if not _prepares(wrapper):
        return None
    with _Intact(wrapper), wrapper.wrap_database_errors:
        _make_ready(wrapper)
        raw: psycopg.Connection[Any] = wrapper.connection
        raw.add_notify_handler(lambda _: on_notify())
        raw.execute(psycopg.sql.SQL("LISTEN {}").format(psycopg.sql.Identifier(channel)))
        return raw.fileno()


def read_notifications() -> int:
    """Read the notifications that have arrived on this thread's connection; return how many.

    Those that arrive with the answer of a statement are reported by it (see listen).
    """
    wrapper = connection()
    with _Intact(wrapper), wrapper.wrap_database_errors:
        raw: psycopg.Connection[Any] = wrapper.connection
        raw.pgconn.consume_input()
        count = 0
        while raw.pgconn.notifies() is not None:
            count += 1
        return count


def _make_ready(wrapper: BaseDatabaseWrapper) -> None:
    """Connect; a connection that was kept is checked first where CONN_HEALTH_CHECKS asks for it, as Django does.

    One on which a statement of the task's own was broken off is replaced.
    """
    check_kind(wrapper)
    if not wrapper.in_atomic_block and _is_busy(wrapper, in_pipeline=False):
        _discard(wrapper)
    wrapper.close_if_health_check_failed()
    wrapper.ensure_connection()


def _prepares(wrapper: BaseDatabaseWrapper) -> bool:
    wanted = conf().prepared_statements
    return wanted if wanted is not None else not wrapper.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS")


def _cursor(wrapper: BaseDatabaseWrapper, name: str, row: type[Row]) -> psycopg.Cursor[Row]:
    """Give the connection's cursor for a statement, which is prepared."""
    raw: psycopg.Connection[Any] = wrapper.connection
    known = _cursors.setdefault(raw, {})
    cursor = known.get((name, row))
    if cursor is None:
        if raw.prepare_threshold is None and _prepares(wrapper):
            raw.prepare_threshold = 5
            raw.prepared_max = max(raw.prepared_max or 0, 100)
        cursor = known[name, row] = rows.cursor(raw, row)
    return cursor
