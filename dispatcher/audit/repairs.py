"""Repair what the audit found, by the engine's own steps, which check each row again under its lock.

A repair takes the findings of one check and returns how many it repaired. It is safe beside a running system: a row
that no longer violates the invariant is left as it is.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Final
from uuid import UUID

from dispatcher import engine, sql
from dispatcher.conf import Conf, conf
from dispatcher.ending import InFlight
from dispatcher.engine import attempt, sent
from dispatcher.errors import WorkerLost
from dispatcher.lifecycle import oversized, recover, schedule
from dispatcher.reports.health import Finding

Repair = Callable[[Sequence[Finding]], int]
"""Repairs findings of one check and returns how many."""

_END: Final = 2**63 - 1
"""After the last lane and key."""


def overdue(settings: Conf) -> timedelta:
    """Return the time after the end of a lease within which recovery, if it runs, has recovered the call."""
    return settings.run_lease + 3 * settings.recover_every


def free_orphans(found: Sequence[Finding]) -> int:
    """Delete slots without a call in flight, and let other calls into their room."""
    freed = recover.free_orphans([int(each.target) for each in found]).slots
    engine.dispense()
    return freed


def put_back(found: Sequence[Finding]) -> int:
    """Put back calls in flight that hold no slots, as lost calls: a call that had started has spent its attempt."""
    error = WorkerLost("the audit found that it held no slot")
    gone = [InFlight(call_id=UUID(each.target), ticket=UUID(each.version)) for each in found]
    lose = partial(engine.lose, gone, error, is_crash=False)
    return attempt.retry_while_unavailable(lose, may_pass=sql.is_locked)


def recover_leases(_: Sequence[Finding]) -> int:
    """Put back calls whose leases expired long ago, as recovery does; it finds them again, under their locks."""
    silent = WorkerLost("its worker fell silent for longer than a lease")
    now = sql.now()
    with sql.atomic():
        return engine.lose(recover.expired(now=now - overdue(conf())), silent, is_crash=True)


def serve(found: Sequence[Finding]) -> int:
    """Do what ticks do, for all lanes and keys: leave notes for what no trip would look at, and serve what is due."""
    why = [each.facts.get("why") for each in found]
    served = why.count("ready") + sent.serve(
        unplaced=[UUID(each.target) for each, reason in zip(found, why, strict=True) if reason == "unplaced"]
    )
    lane = key = 0
    while lane < _END or key < _END:
        stranded = recover.ask_stranded(after_lane=lane, after_key=key).row()
        served += stranded.count
        lane, key = stranded.last_lane or _END, stranded.last_key or _END
    served += oversized.release() + schedule.wake_due()
    engine.tick(now=sql.now())
    return served
