"""What the commands share: where they write, and two lines without a traceback if the database can't be queried."""

import logging
import os
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import wraps
from shutil import get_terminal_size
from typing import Final, ParamSpec

from django.core.management.base import CommandError, OutputWrapper
from django.utils.termcolors import colorize

from dispatcher import sql
from dispatcher.management.key_table import Paint, plain
from dispatcher.models import RateLimitKey
from dispatcher.sql import faults

P = ParamSpec("P")
_ANY_WIDTH: Final = 10_000
"""Columns where there is no terminal: a log keeps long lines."""


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
                words = faults.in_words(fault) or f"The database query failed: {fault}"
                raise CommandError(words, returncode=returncode) from fault

        return explaining

    return wrap


def find_key(name: str) -> RateLimitKey:
    """Return a key. Raises CommandError with similar names if it does not exist."""
    found = RateLimitKey.objects.filter(name=name).first()
    if found is None:
        raise unknown_keys([name])
    return found


def unknown_keys(names: Collection[str]) -> CommandError:
    """Return the error that none of these keys exists, with similar names."""
    known = list(RateLimitKey.objects.values_list("name", flat=True))
    close = {name: " or ".join(get_close_matches(name, known)) for name in names}
    hints = {name: f" Did you mean {words}?" if words else "" for name, words in close.items()}
    return CommandError(" ".join(f"There is no rate limit key {name!r}.{hint}" for name, hint in hints.items()))


@dataclass(frozen=True, kw_only=True)
class Screen:
    """Where a command writes: as wide as the terminal, elsewhere as its lines.

    paint: gives a text the colors of a terminal, as Django's `colorize` does, where it has them.
    """

    is_terminal: bool
    width: int
    height: int
    paint: Paint


@contextmanager
def console(out: OutputWrapper, *, no_color: bool) -> Iterator[Screen]:
    """Yield where a command writes; a closed pipe ends the block."""
    out.ending = ""
    is_terminal = out.isatty()
    width, height = get_terminal_size() if is_terminal else (_ANY_WIDTH, 0)
    is_colored = is_terminal and not no_color and "NO_COLOR" not in os.environ
    try:
        yield Screen(is_terminal=is_terminal, width=width, height=height, paint=colorize if is_colored else plain)
        out.flush()
    except BrokenPipeError:
        # The reader, such as `head`, has closed the pipe; Python flushes once more at exit, to nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
