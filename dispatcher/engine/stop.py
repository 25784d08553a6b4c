"""Stop: a provider said stop, so its keys are blocked and the call waits.

A key that another transaction keeps locked is blocked by a thread, as soon as that ends; the call waits by itself.
"""

import logging
from collections.abc import Collection
from datetime import timedelta
from time import monotonic, sleep
from typing import ClassVar
from uuid import UUID

from django.db import OperationalError, connections

from dispatcher import sql
from dispatcher.engine import dispenser, threads
from dispatcher.history import By
from dispatcher.lifecycle import control, finish
from dispatcher.lifecycle.finish import Ended, Requeue
from dispatcher.limits.policy import LONGEST_PERIOD
from dispatcher.models import RateLimitKey, Slot

logger = logging.getLogger(__name__)

_LOCK_WAIT = timedelta(seconds=1)
"""How long one try waits for a locked key, before the others have their turn."""
_PAUSE_S = 1.0
"""How long it leaves the database alone after an error of another kind."""


def stop(ended: Ended, *, by: By | None = None) -> bool:
    """Let the call wait again and block the keys that the provider stopped: both or neither, so nothing slips through.

    For 366 days at the most. Return whether the ticket still held the call. by: who reports it, for the history.
    """
    try:
        is_stopped = _stop(ended, by, is_locked=False)
    except OperationalError as fault:
        if sql.in_transaction() or not sql.is_locked(fault):
            raise
        is_stopped = _stop(ended, by, is_locked=True)
    if is_stopped:
        sql.after_commit(dispenser.dispense_briefly)
    return is_stopped


def _stop(ended: Ended, by: By | None, *, is_locked: bool) -> bool:
    pause = min(ended.ending.wait or timedelta(0), LONGEST_PERIOD)
    with sql.own_transaction(lock_wait=finish.LOCK_WAIT):
        names, is_spent = _stopped_keys(ended.call_id, ended.ending.key)
        # A call that spends no key that could hold it back waits by itself.
        wait = pause if is_locked or not is_spent else None
        if finish.requeue(ended.call_id, ended.ticket, Requeue.STOPPED, claim_id=ended.claim_id, wait=wait) is None:
            return False
        if not is_locked:
            control.block(pause, names=names, by=by)
    if is_locked and names:
        logger.warning(
            "call %s must stop for %s, but a transaction keeps a key locked; to be blocked when it ends: %s",
            ended.call_id,
            pause,
            ", ".join(sorted(names)),
        )
        _block_later(names, pause, by)
    return True


def _stopped_keys(call_id: UUID, named: str | None) -> tuple[Collection[str], bool]:
    """Return the names of the keys that a provider stops, and whether the call spends one: by default those it spends.

    Of groups the chosen keys alone: the provider refuses the account or address that the call used; others go on.
    """
    held = Slot.objects.filter(call=call_id, key__isnull=False, key__is_group=False)
    rows = list(held.values_list("key__name", "call__chosen_keys"))
    spent = {name for name, _ in rows}
    if named is not None and (named in spent or RateLimitKey.objects.filter(name=named).exists()):
        return [named], named in spent
    chosen = {name for _, keys in rows for name in (keys or {}).values()}
    stopped = spent & chosen if chosen else spent
    if named is not None:
        logger.warning(
            "RateLimited names the key %r, which does not exist; the call's own keys are blocked instead: %s",
            named,
            ", ".join(sorted(stopped)) or "it has none",
        )
    return stopped, bool(stopped)


class _Pending:
    """What this process has yet to write."""

    blocks: ClassVar[dict[str, tuple[float, By | None]]] = {}
    """The keys by name, each with the monotonic time at which its block ends, and who asked for it.

    From then on it is not worth writing.
    """
    is_served = False
    """Whether a thread writes them."""


def _block_later(names: Collection[str], wait: timedelta, by: By | None) -> None:
    """Block these keys for this long from now on, as soon as no other transaction locks them.

    A process that ends before that has not blocked them.
    """
    for name in names:
        _add(name, monotonic() + wait.total_seconds(), by)
    if not _Pending.is_served:
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
            # The time is read before the wait for the lock, which must not make the block longer.
            now = sql.now()
            left = timedelta(seconds=max(until - monotonic(), 0))
            with sql.own_transaction(lock_wait=_LOCK_WAIT):
                control.block(left, names=[name], by=by, now=now)
        except sql.DATABASE_ERRORS as fault:
            _add(name, until, by)
            if sql.is_locked(fault):
                continue
            logger.warning("failed to block key %s, trying again in %.1f s: %s", name, _PAUSE_S, fault)
            sql.discard_connection()
            sleep(_PAUSE_S)
