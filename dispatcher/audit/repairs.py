"""Repair what the audit found, by the engine's own steps, which check each row again under its lock.

A repair takes the findings of one check and returns how many it repaired. It is safe beside a running system: a row
that no longer violates the invariant is left as it is.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from dispatcher import engine, sql
from dispatcher.conf import Conf, conf
from dispatcher.ending import InFlight
from dispatcher.engine import attempt, sent
from dispatcher.errors import WorkerLost
from dispatcher.lifecycle import oversized, recover, schedule, wake


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
    """Delete slots without a call in flight, and let other calls into their room."""
    freed = recover.free_orphans(_ids(found)).slots
    _go_on()
    return freed


def put_back(found: Sequence[Finding]) -> int:
    """Put back calls in flight that hold no slots, as lost calls: a call that had started has spent its attempt."""
    error = WorkerLost("the audit found that it held no slot")
    gone = [InFlight(call_id=UUID(each.target), ticket=UUID(each.version)) for each in found]
    lose = partial(engine.lose, gone, error, is_crash=False)
    return attempt.retry_while_unavailable(lose, may_pass=sql.is_locked)


def recover_leases(found: Sequence[Finding]) -> int:
    """Put back calls whose leases expired long ago, as recovery does; it finds them again, under their locks."""
    del found
    silent = WorkerLost("its worker fell silent for longer than a lease")
    now = sql.now()
    with sql.atomic():
        return engine.lose(recover.expired(now=now - overdue(conf())), silent, is_crash=True)


def wake_lanes(found: Sequence[Finding]) -> int:
    """Note sleeping lanes, and let their calls go on."""
    noted = sql.change("note_lanes", {"lanes": _ids(found)})
    _go_on(queues={each.facts["queue"] for each in found})
    return noted


def serve_keys(found: Sequence[Finding]) -> int:
    """Let the calls go on that are parked on keys with room."""
    _go_on(keys=_ids(found))
    return len(found)


def serve_queues(found: Sequence[Finding]) -> int:
    """Let the calls of queues go on whose lanes are ready."""
    _go_on(queues=[each.target for each in found])
    return len(found)


def place(found: Sequence[Finding]) -> int:
    """Give calls without a lane their lanes, and let those go on."""
    return sent.serve(unplaced=[UUID(each.target) for each in found])


def release_oversized(found: Sequence[Finding]) -> int:
    """Return oversized calls to their lanes where the limits in force allow their cost."""
    del found
    released = oversized.release()
    if released:
        _go_on()
    return released


def wake_due(found: Sequence[Finding]) -> int:
    """Move calls whose scheduled time has passed into their lanes, and let those go on."""
    woken = schedule.wake_due()
    _go_on(queues={each.facts["queue"] for each in found})
    return woken


def _go_on(*, queues: Collection[str] = (), keys: Collection[int] = ()) -> None:
    """Look at these keys and at all that is noted; wake an idle worker of these queues, or publish their calls."""
    engine.dispense(keys=keys)
    if queues and (published := wake.dispensed(wake.ask(queues=queues))):
        engine.dispense(queues=published)


def _ids(found: Iterable[Finding]) -> list[int]:
    return [int(each.target) for each in found]
