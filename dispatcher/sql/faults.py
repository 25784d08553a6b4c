"""Explain a database error and its remedy in two lines."""

import logging
from time import monotonic
from typing import Final

from dispatcher.conf import conf
from dispatcher.errors import FunctionsMissing
from dispatcher.sql.errors import is_unavailable, sqlstate

logger = logging.getLogger(__name__)

_MISSING: Final = {"42P01", "42703", "42704", "42883"}
"""SQLSTATE of a table, a column, a type and a function that do not exist."""
_LONGEST: Final = 300
_AGAIN_S: Final = 600.0
"""How long what is missing is not reported again."""
_reported: dict[object, float] = {}
"""When each was reported last, by the monotonic clock."""


def in_words(error: BaseException) -> str | None:
    """Return the problem, then the remedy; None for an error that is neither an outage nor a missing migration."""
    if isinstance(error, FunctionsMissing):
        return str(error)
    alias = conf().database
    if sqlstate(error) in _MISSING:
        option = "" if alias == "default" else f" --database {alias}"
        return (
            f"The tables or functions of the dispatcher are missing, or older than its code: {_brief(error)}\n"
            f"Run: python manage.py migrate{option}"
        )
    if is_unavailable(error):
        return (
            f"The database {alias!r} is unavailable: {_brief(error)}\n"
            f"Start it, or correct DATABASES[{alias!r}] in the settings; then try again."
        )
    return None


def report_unmigrated(error: BaseException) -> bool:
    """Return whether migrations or grants are missing; log the remedy, for all functions together.

    A process logs it every ten minutes at the most.
    """
    if sqlstate(error) not in _MISSING and not isinstance(error, FunctionsMissing):
        return False
    words = in_words(error)
    what = FunctionsMissing if isinstance(error, FunctionsMissing) else words
    if what not in _reported or monotonic() - _reported[what] >= _AGAIN_S:
        _reported[what] = monotonic()
        logger.error("migrations are missing, and what needs them waits: %s", words)
    return True


def _brief(error: BaseException) -> str:
    """Return the first line of a message."""
    return str(error).strip().partition("\n")[0][:_LONGEST]
