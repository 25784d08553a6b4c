"""Stop: a provider said stop, so its keys are blocked and the call waits."""

import logging
from collections.abc import Collection
from datetime import timedelta
from uuid import UUID

from dispatcher import sql
from dispatcher.engine import dispenser
from dispatcher.history import By
from dispatcher.lifecycle import control, finish
from dispatcher.lifecycle.finish import Ended, Requeue
from dispatcher.limits.policy import LONGEST_PERIOD
from dispatcher.models import RateLimitKey, Slot

logger = logging.getLogger(__name__)


def stop(ended: Ended, *, by: By | None = None) -> bool:
    """Let the call wait again and block the keys that the provider stopped: both or neither, so nothing slips through.

    For 366 days at the most. Return whether the ticket still held the call. by: who reports it, for the history.
    """
    pause = min(ended.ending.wait or timedelta(0), LONGEST_PERIOD)
    with sql.own_transaction(lock_wait=finish.LOCK_WAIT):
        names, is_spent = _stopped_keys(ended.call_id, ended.ending.key)
        # A call that spends no key that could hold it back waits by itself.
        wait = None if is_spent else pause
        if finish.requeue(ended.call_id, ended.ticket, Requeue.STOPPED, claim_id=ended.claim_id, wait=wait) is None:
            return False
        control.block(pause, names=names, by=by)
        sql.after_commit(dispenser.dispense_briefly)
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
