"""What an error of the database means: whether another try helps, and whether it is one at all."""

from typing import Final

import psycopg
from billiard.exceptions import SoftTimeLimitExceeded
from django.db import (
    DatabaseError,
    DataError,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
)
from django.db.backends.base.base import BaseDatabaseWrapper

from dispatcher.conf import conf
from dispatcher.errors import DatabaseNotReady

DATABASE_ERRORS: Final = (DatabaseError, InterfaceError)
"""Every error that Django raises for a database."""

_UNAVAILABLE_CLASSES: Final = frozenset({"08", "25", "26", "40", "53", "57", "58"})
"""SQLSTATE classes of a server or a connection that can't do its work now: connection lost, read-only, prepared
statement unknown, rolled back, out of resources, shut down, system error."""
_LOCKED: Final = "55P03"
_UNAVAILABLE_STATES: Final = frozenset(
    {
        "0A000",  # "cached plan must not change result type": after a migration, and gone with the connection
        "42P05",  # a prepared statement of another client of the same pooler
        "55006",
        _LOCKED,
    }
)
_DENIED: Final = "42501"
_READ_ONLY: Final = "25006"
_NO_COLUMN: Final = "42703"
_MISSING: Final = frozenset({"42P01", "42704", "42883", _NO_COLUMN})
"""SQLSTATE of a table, a type, a function and a column that do not exist."""
_OURS: Final = "dispatcher_"
_OF_A_POOL: Final = frozenset({"PoolTimeout", "TooManyRequests"})
"""Errors of psycopg_pool, which need not be installed."""
_LONGEST: Final = 300
_REFUSED_CLASSES: Final = frozenset({"20", "21", "22", "23", "42", "44", "54"})
"""SQLSTATE classes of a statement, or of its data, that the server will never accept."""


def is_unavailable(error: BaseException) -> bool:
    """Return whether the same statement may succeed on another connection, or a little later.

    The SQLSTATE decides; without one the error is the client's own: the connection is gone, or could not be made. What
    needs tables or functions that are not there succeeds when the database has been migrated.
    """
    if isinstance(error, DatabaseNotReady):
        return not isinstance(error, NotPostgreSQL)
    state = sqlstate(error)
    if state is None:
        return isinstance(error, OperationalError | InterfaceError | InternalError)
    return state[:2] in _UNAVAILABLE_CLASSES or state in _UNAVAILABLE_STATES


def is_locked(error: BaseException) -> bool:
    """Return whether a statement waited for a lock for longer than it may."""
    return sqlstate(error) == _LOCKED


def is_refused(error: BaseException) -> bool:
    """Return whether the database refused the statement or its data, so that trying again is useless."""
    if is_unavailable(error):
        return False
    state = sqlstate(error)
    if state is None:
        return not isinstance(error, DATABASE_ERRORS) or isinstance(
            error, DataError | IntegrityError | NotSupportedError | ProgrammingError
        )
    return state[:2] in _REFUSED_CLASSES


class NotPostgreSQL(DatabaseNotReady, NotSupportedError):
    """The dispatcher's database is of another kind."""


class NotMigrated(DatabaseNotReady, ProgrammingError):
    """Tables or functions of this code are missing."""


class NotGranted(DatabaseNotReady, ProgrammingError):
    """The role may not use them."""


class ReadOnly(DatabaseNotReady, InternalError):
    """The server, or the transaction, takes no writes."""


class PoolEmpty(DatabaseNotReady, OperationalError):
    """The pool of this process gave no connection in time."""


def check_kind(database: BaseDatabaseWrapper) -> None:
    """Raise NotPostgreSQL for a database of another kind."""
    if database.vendor != "postgresql":
        problem = f"The database {database.alias!r} is {database.vendor}; the dispatcher needs PostgreSQL 14 or newer."
        remedy = "Its limits rest on FOR UPDATE SKIP LOCKED. Set DISPATCHER['database'] to a PostgreSQL database."
        raise NotPostgreSQL(problem, remedy, database=database.alias)


def named(error: BaseException) -> DatabaseNotReady | None:
    """Return what to raise in place of an error that somebody must repair, with the remedy; None for any other."""
    if isinstance(error, DatabaseNotReady):
        return error
    words, state = brief(error), sqlstate(error)
    is_of_a_pool = type(error.__cause__).__name__ in _OF_A_POOL
    if state not in {*_MISSING, _DENIED, _READ_ONLY} and not is_of_a_pool:
        return None
    alias = conf().database
    if state in _MISSING and (_OURS in words or state == _NO_COLUMN):
        problem = f"The tables or functions of the dispatcher are missing, or older than its code: {words}"
        option = "" if alias == "default" else f" --database {alias}"
        return NotMigrated(problem, f"Run: python manage.py migrate{option}", database=alias)
    if state == _DENIED and _OURS in words:
        what = "EXECUTE ON ALL FUNCTIONS" if "function" in words else "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES"
        remedy = f"As the role that migrates: GRANT {what} IN SCHEMA public TO the role of this process."
        return NotGranted(f"The role of the database {alias!r} lacks a grant: {words}", remedy, database=alias)
    if is_of_a_pool:
        remedy = (
            f"If the server is up, give DATABASES[{alias!r}]['OPTIONS']['pool'] a larger max_size: each thread or "
            "greenlet of a process that queries needs a connection, and a worker four more."
        )
        problem = f"The pool of the database {alias!r} gave no connection: {words}"
        return PoolEmpty(problem, remedy, database=alias)
    return read_only(alias, words) if state == _READ_ONLY else None


def read_only(alias: str, words: str) -> DatabaseNotReady:
    """Return the error that a database takes no writes."""
    remedy = (
        f"Let DATABASES[{alias!r}] lead to the primary server, without default_transaction_read_only, and write "
        "outside of read-only transactions."
    )
    return ReadOnly(f"The database {alias!r} takes no writes: {words}", remedy, database=alias)


def brief(error: BaseException) -> str:
    """Return the first line of a message."""
    return str(error).strip().partition("\n")[0][:_LONGEST]


def sqlstate(error: BaseException) -> str | None:
    """Return PostgreSQL's code of an error; None if it is not the server's."""
    for each in (error, error.__cause__):
        if isinstance(each, psycopg.Error):
            return each.sqlstate or each.diag.sqlstate
    return None


def is_interruption(error: BaseException) -> bool:
    """Return whether an error came from outside, at any line: a soft time limit, the end of a process or greenlet."""
    return isinstance(error, SoftTimeLimitExceeded) or not isinstance(error, Exception)


def interruption_of(fault: BaseException, handled: BaseException | None = None) -> BaseException | None:
    """Return what came from outside in the middle of a statement, where it left the driver with this fault.

    handled: what was being handled before, and so is no part of it.
    """
    error: BaseException | None = fault
    while error is not None and error is not handled:
        if is_interruption(error):
            return error
        error = error.__context__
    return None
