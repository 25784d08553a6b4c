"""What the commands have in common: a database that is down, or lacks migrations, gives two lines and no traceback."""

import logging
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from django.core.management.base import CommandError

from dispatcher import sql
from dispatcher.reports import faults

P = ParamSpec("P")


def explained(*, returncode: int = 1) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Have a command's `handle` raise CommandError with the remedy, and this exit code, where it can't be asked."""

    def wrap(handle: Callable[P, None]) -> Callable[P, None]:
        @wraps(handle)
        def explaining(*args: P.args, **kwargs: P.kwargs) -> None:
            # What psycopg warns of on the way is not for people, unless the project has a handler for it.
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
