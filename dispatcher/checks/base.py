"""What several checks need: the settings, the database of the calls, queues that are fetched over HTTP."""

from collections.abc import Iterator, Sequence

from django.core import checks

from dispatcher.conf import Conf, conf
from dispatcher.errors import ConfigurationError, DatabaseNotReady
from dispatcher.extension import HTTP_MISSING, registered

Found = Iterator[checks.CheckMessage]

NAMED = 5
"""How many queues or tasks a message names."""


def not_ready(error: DatabaseNotReady, code: str) -> checks.Error:
    """Return an error of the database as a check's, with its remedy."""
    message, _, remedy = str(error).partition("\n")
    return checks.Error(message, hint=remedy, id=code)


def read_settings() -> Conf:
    """Return the settings, or the defaults where they can't be read, which E001 reports."""
    try:
        return conf()
    except ConfigurationError:
        return Conf()


def alias_of_calls() -> str:
    """Return the alias of the database that holds the calls."""
    return read_settings().database


def without_http(where: str, queues: Sequence[str]) -> Found:
    """Return an error if these queues are fetched over HTTP, and nothing serves it."""
    if queues and not registered().serves_http:
        message = f"{where} gives {', '.join(map(repr, queues))} to workers that fetch over HTTP, but none can."
        yield checks.Error(message, hint=f"{HTTP_MISSING[0].upper()}{HTTP_MISSING[1:]}", id="dispatcher.E017")
