"""The clock of calls, stopped at a moment."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from dispatcher import sql, validate
from dispatcher.errors import CallInvalid


@contextmanager
def at(moment: datetime) -> Iterator[None]:
    """Stop the clock of calls at a moment: what is due, what limits allow and what is written goes by it.

    It is the clock of this process's threads and of no other's. Task code that asks for the time has its own. Raises
    CallInvalid for a time without a zone.
    """
    checked = validate.moment("moment", moment)
    if checked is None:
        raise CallInvalid("moment", "required: give a time with a zone.")
    before, sql.Clock.at = sql.Clock.at, checked
    try:
        yield
    finally:
        sql.Clock.at = before
