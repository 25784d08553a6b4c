"""Blocks: keys that a provider stopped while another transaction kept them locked. A thread blocks them when it can."""

import logging
from collections.abc import Iterable
from datetime import timedelta
from time import monotonic, sleep
from typing import ClassVar

from django.db import connections

from dispatcher import sql
from dispatcher.engine import threads
from dispatcher.history import By
from dispatcher.lifecycle import control

logger = logging.getLogger(__name__)

_LOCK_WAIT = timedelta(seconds=1)
"""How long one try waits for a locked key, before the others have their turn."""
_PAUSE_S = 1.0
"""How long it leaves the database alone after an error of another kind."""


class _Pending:
    """What this process has yet to write."""

    blocks: ClassVar[dict[str, tuple[float, By | None]]] = {}
    """The keys by name, each with the monotonic time at which its block ends, and who asked for it.

    From then on it is not worth writing.
    """
    is_served = False
    """Whether a thread writes them."""


def write_later(names: Iterable[str], wait: timedelta, *, by: By | None = None) -> None:
    """Block these keys for this long from now on: a thread does it, as soon as no other transaction locks them.

    by: for the history, as with `control.block`. Returns at once. A process that ends before that has not blocked them.
    """
    until = monotonic() + wait.total_seconds()
    for name in names:
        _add(name, until, by)
    if _Pending.blocks and not _Pending.is_served:
        _Pending.is_served = True
        threads.start(_write_pending, name="dispatcher-blocks")


def _add(name: str, until: float, by: By | None) -> None:
    """Keep the block that lasts longest."""
    if name not in _Pending.blocks or until > _Pending.blocks[name][0]:
        _Pending.blocks[name] = until, by


def _write_pending() -> None:
    try:
        while True:
            while _Pending.blocks:
                _try_each()
            _Pending.is_served = False
            # What was added before is written here; what is added after starts a thread of its own.
            if not _Pending.blocks:
                return
    finally:
        _Pending.is_served = False
        connections.close_all()


def _try_each() -> None:
    for name in list(_Pending.blocks):
        until, by = _Pending.blocks.pop(name, (0.0, None))
        if monotonic() >= until:
            continue
        try:
            _write(name, until, by)
        except sql.DATABASE_ERRORS as fault:
            _add(name, until, by)
            if sql.is_locked(fault):
                continue
            logger.warning("failed to block key %s, trying again in %.1f s: %s", name, _PAUSE_S, fault)
            sql.discard_connection()
            sleep(_PAUSE_S)


def _write(name: str, until: float, by: By | None) -> None:
    # The time is read before the wait for the lock, which must not make the block longer.
    now = sql.now()
    left = timedelta(seconds=max(until - monotonic(), 0))
    with sql.own_transaction(lock_wait=_LOCK_WAIT):
        control.block(left, names=[name], by=by, now=now)
