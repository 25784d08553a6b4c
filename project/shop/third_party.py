"""How the shop reaches its third parties: over one connection that each worker process keeps open.

By the standard library's client, the shortest way to the socket: calls that start evenly should arrive so.
"""

import json
import os
import time
from functools import cache
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

from celery.signals import worker_process_init

from dispatcher.errors import RateLimited

TIMEOUT = 30.0


class ThirdPartyFailed(Exception):
    """Raised when a third party could not do what it was asked for; it may another time."""


def ask(
    path: str, *, keys: list[str], call: str, seconds: float, failures: int = 0, set_out: int | None = None
) -> None:
    """Ask a third party for something that takes `seconds` and spends `keys`; `failures` times it fails first.

    set_out: monotonic nanoseconds at which the caller made up its mind; now, if it does not say.

    Raises RateLimited if it says that a limit is broken, ThirdPartyFailed if it says anything else but yes.
    """
    asked = {"keys": keys, "call": call, "seconds": seconds, "failures": failures}
    asked["set_out"] = time.monotonic_ns() if set_out is None else set_out
    connection = _connection()
    try:
        connection.request("POST", f"/{path}", json.dumps(asked).encode(), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
    except (HTTPException, OSError):
        # The next request opens it again.
        connection.close()
        raise
    if answer.status == HTTPStatus.TOO_MANY_REQUESTS:
        raise RateLimited(retry_after=int(answer.headers["Retry-After"]))
    if answer.status != HTTPStatus.OK:
        message = f"/{path} answered {answer.status}: {text}"
        raise ThirdPartyFailed(message)


@worker_process_init.connect
def connect(**_: object) -> None:
    """Connect before the first call starts, since one that has to connect would arrive late.

    Not to the database: Celery closes what a new process has of that. A deployment has no third parties, unless
    WITNESS_URL names a server that plays them.
    """
    if "WITNESS_URL" in os.environ:
        _connection().connect()


@cache
def _connection() -> HTTPConnection:
    """Return this process's connection to the witness, which plays all third parties."""
    return HTTPConnection(urlsplit(os.environ["WITNESS_URL"]).netloc, timeout=TIMEOUT)
