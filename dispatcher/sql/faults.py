"""Explain a database error and its remedy in two lines."""

import logging
from time import monotonic
from typing import Final

from dispatcher.conf import conf
from dispatcher.sql.errors import brief, is_locked, is_unavailable, named

logger = logging.getLogger(__name__)

_AGAIN_S: Final = 600.0
"""How long the same remedy is not reported again."""
_reported: dict[str, float] = {}
"""When each was reported last, by the monotonic clock."""


def in_words(error: BaseException) -> str | None:
    """Return the problem, then the remedy; None for an error that is neither passing nor known to need a repair."""
    if (found := named(error)) is not None:
        return str(found)
    if is_locked(error):
        return (
            f"Another transaction has locked what this needs: {brief(error)}\n"
            "Wait until it has ended, or end it; then try again."
        )
    if is_unavailable(error):
        alias = conf().database
        return (
            f"The database {alias!r} is unavailable: {brief(error)}\n"
            f"Start it, or correct DATABASES[{alias!r}] in the settings; then try again."
        )
    return None


def report(error: BaseException) -> bool:
    """Return whether somebody must repair the database; log the remedy.

    A process logs the same remedy every ten minutes at the most.
    """
    if (found := named(error)) is None:
        return False
    remedy = str(found).partition("\n")[2]
    if remedy not in _reported or monotonic() - _reported[remedy] >= _AGAIN_S:
        _reported[remedy] = monotonic()
        logger.error("the database is not ready, and what needs it waits: %s", found)
    return True
