"""Repair what the audit found, by the engine's own steps, which check each row again under its lock.

A repair takes the findings of one check and returns how many it repaired. It is safe beside a running system: a row
that no longer violates the invariant is left as it is.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from dispatcher import engine, sql
from dispatcher.conf import Conf, conf
from dispatcher.engine import attempt, lost, sent
from dispatcher.errors import WorkerLost
from dispatcher.lifecycle import oversized, recover, schedule


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One row that violates an invariant."""

    what: str
    target: str
    """The id, or the name, of the row."""
    version: str
    """Unchanged while the row is unchanged; the ticket of a call in flight."""
    facts: Mapping[str, Any]
    total: int
    """The number of findings of this check, including those that were not read."""

    @property
    def identity(self) -> tuple[str, str]:
        """The row and its version."""
        return self.target, self.version


Repair = Callable[[Sequence[Finding]], int]
"""Repairs findings of one check and returns how many."""


def overdue(settings: Conf) -> timedelta:
    """Return the time after the end of a lease within which recovery, if it runs, has recovered the call."""
    return settings.run_lease + 3 * settings.recover_every


def free_orphans(found: Sequence[Finding]) -> int:
    """Delete slots without a call in flight, and admit other calls into their room."""
    keys = recover.free_orphans(_ids(found)).keys
    engine.dispense(keys={key for key in keys if key is not None}, total=conf().batch)
    return len(keys)


def put_back(found: Sequence[Finding]) -> int:
    """Put back calls in flight that hold no slots, as lost calls: a call that had started has spent its attempt."""
    error = WorkerLost("the audit found that it held no slot")
    tickets = sorted((UUID(each.target), UUID(each.version)) for each in found)
    with sql.atomic():
        ended = [lost.put_back(call, ticket, error, is_crash=False) for call, ticket in tickets]
        attempt.wake(ended)
    return engine.serve(ended)


def recover_leases(found: Sequence[Finding]) -> int:
    """Put back calls whose leases expired long ago, as recovery does; it finds them again, under their locks."""
    del found
    silent = WorkerLost("its worker fell silent for longer than a lease")
    now = sql.now()
    with sql.atomic():
        left = recover.expired(now=now - overdue(conf()))
        ended = [lost.put_back(call.call_id, call.ticket, silent, is_crash=True) for call in left]
        attempt.wake(ended)
    return engine.serve(ended)


def wake_lanes(found: Sequence[Finding]) -> int:
    """Wake sleeping lanes, and dispense them."""
    woken = recover.wake(_ids(found))
    engine.dispense(lanes=_ids(found), total=conf().batch)
    return woken


def serve_lanes(found: Sequence[Finding]) -> int:
    """Dispense awake lanes."""
    engine.dispense(lanes=_ids(found), total=conf().batch)
    return len(found)


def serve_keys(found: Sequence[Finding]) -> int:
    """Dispense the lanes that are parked on keys with room."""
    engine.dispense(keys=_ids(found), total=conf().batch)
    return len(found)


def serve_queues(found: Sequence[Finding]) -> int:
    """Dispense the lanes that are held by queues with room."""
    engine.dispense(queues=[each.target for each in found], total=conf().batch)
    return len(found)


def place(found: Sequence[Finding]) -> int:
    """Give calls without a lane their lanes, and dispense those."""
    return sent.serve(unplaced=[UUID(each.target) for each in found])


def release_oversized(found: Sequence[Finding]) -> int:
    """Return oversized calls to their lanes where the limits in force allow their cost."""
    released = oversized.release(_ids(found))
    if released.calls:
        engine.dispense(awake=True, total=conf().batch)
    return released.calls


def wake_due(found: Sequence[Finding]) -> int:
    """Move calls whose scheduled time has passed into their lanes, and dispense those."""
    del found
    woken = schedule.wake_due()
    engine.dispense(awake=True, total=conf().batch)
    return woken


def _ids(found: Iterable[Finding]) -> list[int]:
    return [int(each.target) for each in found]
