"""Requests that may wait: how long each may hold its thread, and whether the token behind it still holds."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

from django.http import HttpRequest

from dispatcher.ojs.api import access_of
from dispatcher.ojs.waiters import WAITERS

RETRY_AFTER: Final = {"Retry-After": "1"}
"""What a request is answered with that could not wait for as long as it asked for."""


@contextmanager
def place(request: HttpRequest, wait: timedelta) -> Iterator[timedelta]:
    """Yield for how long the request may wait: for no time where too many do, or the server has one thread only."""
    if not wait or not request.META.get("wsgi.multithread", True):
        yield timedelta(0)
        return
    with WAITERS.place(access_of(request).name) as has_place:
        yield wait if has_place else timedelta(0)
