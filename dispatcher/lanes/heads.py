"""Heads of lanes: when the first call of a lane changes, the new one may have room where the former had none."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from dispatcher import sql
from dispatcher.states import State


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a call waits, or waited; without a lane or a position it has delayed no other call."""

    lane_id: int | None
    position: int | None


@dataclass(frozen=True, kw_only=True)
class Changed:
    """Lanes that nothing holds up, and keys that are shut for a call which is not the first of its lane any more."""

    lanes: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    """Such lanes of queues whose workers take calls themselves, directly or over HTTP."""
    direct: list[str] = field(default_factory=list)
    """The queues of those that Celery workers serve directly."""
    keys: list[int] = field(default_factory=list)


def first(places: Iterable[Place]) -> dict[int, int]:
    """Return the lanes of these places, each with the first of its positions."""
    found: dict[int, int] = {}
    for place in places:
        if place.lane_id is not None and place.position is not None:
            found[place.lane_id] = min(place.position, found.get(place.lane_id, place.position))
    return found


def changed(positions: Mapping[int, int]) -> Changed:
    """Return where a pass is wanted since calls came to, or left, these lanes; each with the first of the positions."""
    if not positions:
        return Changed()
    with sql.together():
        asked = _ask(lanes=list(positions), positions=list(positions.values()))
    return asked.row()


def ask_changed(call: UUID) -> sql.Asked[Changed]:
    """Ask where a pass is wanted since this call came; its row is the answer."""
    return _ask(call=call)


def _ask(*, lanes: Sequence[int] = (), positions: Sequence[int] = (), call: UUID | None = None) -> sql.Asked[Changed]:
    params = {"lanes": [*lanes], "positions": [*positions], "call": call, "waiting": State.AVAILABLE.value}
    return sql.ask("changed_lanes", Changed, params)


def defer_changed(positions: Mapping[int, int], *, now: datetime | None = None) -> None:
    """Leave the keys to the next pass that are shut for a call which is not the first of its lane any more."""
    if keys := changed(positions).keys:
        sql.change("defer_keys", {"keys": keys, "now": now})
