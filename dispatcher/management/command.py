"""What the commands share: an unavailable database, or missing migrations, give two lines and no traceback."""

import logging
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from django.core.management.base import CommandError

from dispatcher import sql
from dispatcher.reports import faults

P = ParamSpec("P")


def explained(*, returncode: int = 1) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Make `handle` raise CommandError with the remedy and this exit code if the database can't be queried."""

    def wrap(handle: Callable[P, None]) -> Callable[P, None]:
        @wraps(handle)
        def explaining(*args: P.args, **kwargs: P.kwargs) -> None:
            # psycopg's warnings are hidden, unless the project has a handler for them.
            logging.getLogger("psycopg").addHandler(logging.NullHandler())
            try:
                handle(*args, **kwargs)
            except sql.DATABASE_ERRORS as fault:
                words = faults.in_words(fault)
                if words is None:
                    raise
                raise CommandError(words, returncode=returncode) from fault

        return explaining

    return wrap
