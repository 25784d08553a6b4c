"""Connections to the dispatcher's database: a thread's own, and others. None is kept that was left in a statement."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
import psycopg.sql
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.errors import Diagnostic
from psycopg.pq import PipelineStatus, TransactionStatus

from dispatcher.conf import conf
from dispatcher.errors import DatabaseNotReady
from dispatcher.sql.errors import (
    DATABASE_ERRORS,
    check_kind,
    is_interruption,
    is_locked,
    is_unavailable,
    named,
)

_BUSY: Final = (TransactionStatus.ACTIVE, TransactionStatus.UNKNOWN)


def connection() -> BaseDatabaseWrapper:
    """Return this thread's connection to the dispatcher's database."""
    return connections[conf().database]


def new_connection() -> BaseDatabaseWrapper:
    """Return another connection to the dispatcher's database, for `using`; it is not open yet.

    It commits each statement, belongs to no thread and to no pool, and nothing closes it but its owner.
    """
    wrapper = connections.create_connection(conf().database)
    own = {name: value for name, value in wrapper.settings_dict["OPTIONS"].items() if name != "pool"}
    wrapper.settings_dict = {
        **wrapper.settings_dict,
        "OPTIONS": own,
        "AUTOCOMMIT": True,
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
    return is_within(connection())


def is_within(wrapper: BaseDatabaseWrapper) -> bool:
    """Return whether what is written now on a connection commits with its user."""
    is_autocommit = wrapper.autocommit if wrapper.connection is not None else wrapper.settings_dict["AUTOCOMMIT"]
    return wrapper.in_atomic_block or not is_autocommit


def discard_connection() -> None:
    """Close this thread's connection, so that the next statement makes another one."""
    discard(connection())


def discard(wrapper: BaseDatabaseWrapper) -> None:
    """Close a connection, so that its next statement makes another one."""
    if wrapper.connection is not None:
        # A pool must not give it to the next one either.
        wrapper.connection.close()
    wrapper.close()


class Intact:
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
            if is_busy(self._wrapper, in_pipeline=is_interruption(error)):
                discard(self._wrapper)
            return
        if is_unavailable(error) and not is_locked(error) and not self._wrapper.in_atomic_block:
            discard(self._wrapper)
        if not isinstance(error, DatabaseNotReady) and (found := named(error)) is not None:
            raise found from error.__cause__


def is_busy(wrapper: BaseDatabaseWrapper, *, in_pipeline: bool) -> bool:
    """Return whether a statement is under way; in a pipeline one always may be: `in_pipeline` is the answer there."""
    raw: psycopg.Connection[Any] | None = wrapper.connection
    if raw is None:
        return False
    return in_pipeline if raw.pgconn.pipeline_status != PipelineStatus.OFF else raw.pgconn.transaction_status in _BUSY


@contextmanager
def atomic() -> Iterator[None]:
    """Open a transaction on the dispatcher's database."""
    wrapper = connection()
    with Intact(wrapper), transaction.atomic(using=wrapper.alias), Intact(wrapper):
        yield


@contextmanager
def notices() -> Iterator[list[tuple[str, str]]]:
    """Yield the list of the notices that this thread's connection receives inside, each with its context."""
    received: list[tuple[str, str]] = []

    def note(notice: Diagnostic) -> None:
        # It is gone when this returns.
        received.append((notice.message_primary or "", notice.context or ""))

    wrapper = connection()
    make_ready(wrapper)
    raw: psycopg.Connection[Any] = wrapper.connection
    raw.add_notice_handler(note)
    try:
        yield received
    finally:
        raw.remove_notice_handler(note)


def listen(channel: str, on_notify: Callable[[], None]) -> int | None:
    """Listen on a channel with this thread's connection; return its file descriptor, None where that is not possible.

    on_notify: called when a notification is read, which may be in the middle of another statement. Behind a transaction
    pooler a notification would reach any client.
    """
    wrapper = connection()
    if not prepares(wrapper):
        return None
    with Intact(wrapper), wrapper.wrap_database_errors:
        make_ready(wrapper)
        raw: psycopg.Connection[Any] = wrapper.connection
        raw.add_notify_handler(lambda _: on_notify())
        raw.execute(psycopg.sql.SQL("LISTEN {}").format(psycopg.sql.Identifier(channel)))
        return raw.fileno()


def read_notifications(wrapper: BaseDatabaseWrapper) -> int:
    """Read the notifications that have arrived on a connection; return how many.

    Those that arrive with the answer of a statement are reported by it (see listen).
    """
    with Intact(wrapper), wrapper.wrap_database_errors:
        raw: psycopg.Connection[Any] = wrapper.connection
        raw.pgconn.consume_input()
        count = 0
        while raw.pgconn.notifies() is not None:
            count += 1
        return count


def make_ready(wrapper: BaseDatabaseWrapper) -> None:
    """Connect; a connection that was kept is checked first where CONN_HEALTH_CHECKS asks for it, as Django does.

    One on which a statement of the task's own was broken off is replaced.
    """
    check_kind(wrapper)
    if not wrapper.in_atomic_block and is_busy(wrapper, in_pipeline=False):
        discard(wrapper)
    wrapper.close_if_health_check_failed()
    wrapper.ensure_connection()


def prepares(wrapper: BaseDatabaseWrapper) -> bool:
    """Return whether statements are prepared on a connection."""
    wanted = conf().prepared_statements
    return wanted if wanted is not None else not wrapper.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS")
