"""Mend: what the audit found and can be put right, by the engine's own steps; judged again under the locks.

Each takes the findings of one check and returns how many it mended. It may do so beside a running system: what
somebody else has put right meanwhile is left as it is.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Protocol
from uuid import UUID

from dispatcher import attempt, engine, sql
from dispatcher.conf import Conf, conf
from dispatcher.errors import WorkerLost
from dispatcher.lifecycle import due, finish, oversized, recover


class Broken(Protocol):
    """What a finding tells of what is to be mended."""

    @property
    def target(self) -> str:
        """The id, or the name, of what it is about."""

    @property
    def version(self) -> str:
        """Of a call in flight its ticket."""


Mender = Callable[[Sequence[Broken]], int]


def overdue(settings: Conf) -> timedelta:
    """Return how long after the end of its lease a call must have been recovered, wherever recovery runs."""
    return settings.run_lease + 3 * settings.recover_every


def free_orphans(found: Sequence[Broken]) -> int:
    """Delete slots without a call in flight, and hand their room on."""
    keys = recover.free_orphans(_ids(found)).keys
    engine.dispense(keys={key for key in keys if key is not None}, total=conf().batch)
    return len(keys)


def put_back(found: Sequence[Broken]) -> int:
    """Let calls in flight that no limit counts wait again, as lost ones: what had started has spent its attempt."""
    error = WorkerLost("it held no slot any more, as the audit found")
    tickets = sorted((UUID(each.target), UUID(each.version)) for each in found)
    with sql.atomic():
        ended = _wake(attempt.lost(call, ticket, error, is_crash=False) for call, ticket in tickets)
    engine.serve(ended)
    return len(ended)


def recover_leases(found: Sequence[Broken]) -> int:
    """Put back calls whose leases ran out long ago, as the recovery does; those found now, under their locks."""
    del found
    silent = WorkerLost("its worker fell silent for longer than a lease")
    now = sql.now()
    with sql.atomic():
        left = recover.expired(now=now - overdue(conf()))
        ended = _wake(attempt.lost(call.call_id, call.ticket, silent, is_crash=True) for call in left)
    engine.serve(ended)
    return len(ended)


def wake_lanes(found: Sequence[Broken]) -> int:
    """Wake lanes that sleep, and serve them."""
    woken = recover.wake(_ids(found))
    engine.dispense(lanes=_ids(found), total=conf().batch)
    return woken


def serve_lanes(found: Sequence[Broken]) -> int:
    """Serve lanes that are awake."""
    engine.dispense(lanes=_ids(found), total=conf().batch)
    return len(found)


def serve_keys(found: Sequence[Broken]) -> int:
    """Let the lanes go on that are parked on keys with room."""
    engine.dispense(keys=_ids(found), total=conf().batch)
    return len(found)


def serve_queues(found: Sequence[Broken]) -> int:
    """Let the lanes go on that are held by queues with room."""
    engine.dispense(queues=[each.target for each in found], total=conf().batch)
    return len(found)


def place(found: Sequence[Broken]) -> int:
    """Put calls into their lanes that have none yet, and serve these."""
    return engine.place_and_dispense([UUID(each.target) for each in found])


def release_oversized(found: Sequence[Broken]) -> int:
    """Let calls that waited alone go on where the limits in force allow their cost."""
    released = oversized.release(_ids(found))
    if released.calls:
        engine.dispense(awake=True, total=conf().batch)
    return released.calls


def wake_due(found: Sequence[Broken]) -> int:
    """Let the calls whose time has come wait in their lanes, and serve these."""
    del found
    woken = due.wake_due()
    engine.dispense(awake=True, total=conf().batch)
    return woken


def _ids(found: Iterable[Broken]) -> list[int]:
    return [int(each.target) for each in found]


def _wake(ended: Iterable[finish.Released | None]) -> list[finish.Released]:
    """Wake the lanes of what was put back, in the transaction that did so."""
    put_back = [released for released in ended if released is not None]
    attempt.wake(put_back)
    return put_back
