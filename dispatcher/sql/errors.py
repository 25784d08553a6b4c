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

from dispatcher.conf import conf
from dispatcher.errors import FunctionsMissing
from dispatcher.sql.functions import version

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
_UNDEFINED: Final = frozenset({"42704", "42883", _DENIED})
"""SQLSTATE of a type and a function that do not exist, and of one that the role may not execute."""
_REFUSED_CLASSES: Final = frozenset({"20", "21", "22", "23", "42", "44", "54"})
"""SQLSTATE classes of a statement, or of its data, that the server will never accept."""


def is_unavailable(error: BaseException) -> bool:
    """Return whether the same statement may succeed on another connection, or a little later.

    The SQLSTATE decides; without one the error is the client's own: the connection is gone, or could not be made. What
    calls functions that are not there succeeds when the database has been migrated.
    """
    if isinstance(error, FunctionsMissing):
        return True
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


class _FunctionsMissing(FunctionsMissing, ProgrammingError):
    """What a statement raises for it, so that code that catches errors of a database catches this one."""


def functions_missing(error: BaseException) -> FunctionsMissing | None:
    """Return what to raise in place of an error that says that a function of this version can't be called."""
    words, state = str(error).partition("\n")[0], sqlstate(error)
    if isinstance(error, FunctionsMissing) or state not in _UNDEFINED or f"_{version()}" not in words:
        return None
    return _FunctionsMissing(words, database=conf().database, is_denied=state == _DENIED)


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
