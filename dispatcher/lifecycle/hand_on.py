"""Hand on: admit the next call with the room of one that ends, in the transaction of its finish and in the same trip.

The plain case: the first call of a lane that is parked on a key of the call. What else a release opens, an ordinary
pass serves.
"""

from dataclasses import dataclass
from uuid import UUID

from dispatcher import sql
from dispatcher.conf import conf, needs_worker, send_bound
from dispatcher.messages.message import Admitted
from dispatcher.states import State


@dataclass(frozen=True, kw_only=True)
class Next(Admitted):
    """The call that was admitted."""

    asleep: int | None
    """Its lane, if that has no more calls, and so sleeps."""


@dataclass(frozen=True, kw_only=True)
class Locked:
    """The lanes that were locked."""

    asleep: list[int]
    """Those that sleep by now: others have left them to this release meanwhile."""
    chosen_lanes: str
    locked_keys: str


def ask_next(call_id: UUID) -> tuple[sql.Asked[Locked], sql.Asked[Next]]:
    """Admit what the room of this call, which has ended in the same transaction, is for; its rows are one, or none."""
    settings = conf()
    params = {
        "ahead": send_bound(settings),
        "needs_worker": needs_worker(),
        "lease": settings.dispatch_lease,
        "margin": settings.margin,
        "ramp": settings.ramp,
        "waiting": State.AVAILABLE.value,
    }
    return sql.ask("lock_released", Locked, {"call": call_id}), sql.ask("admit_released", Next, params)
